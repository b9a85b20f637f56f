"""Markers that follow from where a test stands, and fixtures of several files."""

import pathlib

import pytest

HERE = pathlib.Path(__file__).parent


def pytest_collection_modifyitems(items):
    for item in items:
        if pathlib.Path(item.path).is_relative_to(HERE / "op"):
            item.add_marker(pytest.mark.isa)


@pytest.fixture
def on_simulated_device():
    """Where the stream is cut is then a function of the program: on a real device, a pause of the client (a busy machine) cuts it, too."""
    import dtorch

    with dtorch.simulate("cpu-plain") as sim:
        sim.step()  # not at every optimizer's step: that waits
        yield
