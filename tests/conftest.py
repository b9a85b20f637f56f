"""Markers that follow from where a test stands, and fixtures of several files."""

import os
import pathlib

import pytest

HERE = pathlib.Path(__file__).parent


def nodes():
    import dtorch

    return dtorch._C._node_info()[0]


def pytest_collection_modifyitems(config, items):
    for item in items:
        if pathlib.Path(item.path).is_relative_to(HERE / "op"):
            item.add_marker(pytest.mark.isa)
        for mark in item.iter_markers("one_process"):
            item.add_marker(pytest.mark.skipif(nodes() > 1, reason=mark.args[0]))
    share = os.environ.get("DTORCH_TEST_SHARE")  # "K/N": every N-th of the tests at hand, from the K-th. tests/node sets it for its programs
    if share:
        first, step = map(int, share.split("/"))
        kept = items[first::step]
        config.hook.pytest_deselected(items=[x for i, x in enumerate(items) if i % step != first])
        items[:] = kept


@pytest.fixture
def on_simulated_device():
    """Where the stream is cut is then a function of the program: on a real device, a pause of the client (a busy machine) cuts it, too."""
    import dtorch

    with dtorch.simulate("cpu-plain") as sim:
        sim.step()  # not at every optimizer's step: that waits
        yield
