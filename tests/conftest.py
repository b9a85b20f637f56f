"""Markers that follow from where a test stands, and fixtures of several files."""

import functools
import hashlib
import json
import os
import pathlib
import random

import numpy as np
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


# ---- what a test reads (every_pass.py) -------------------------------------------------------------------------------------------------

VALUES = os.environ.get("DTORCH_TEST_VALUES")  # a folder: for each test a line there, with its outcome and a hash of the values that it read
READS = ("numpy", "item", "tolist", "__array__", "__float__", "__int__", "__bool__")
read = None  # the hash of the test that runs


def noted(method):
    """The method of Tensor, which also notes what it returns."""

    @functools.wraps(method)
    def call(*args, **kwargs):
        value = method(*args, **kwargs)
        if read is not None:
            read.update(value.tobytes() if hasattr(value, "tobytes") else repr(value).encode())
        return value

    return call


if VALUES:
    import dtorch

    HASH = pytest.StashKey()
    for name in READS:
        setattr(dtorch.Tensor, name, noted(getattr(dtorch.Tensor, name)))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(item):
        global read
        read = hashlib.sha256()
        for seed in (dtorch.manual_seed, random.seed, np.random.seed):
            seed(0)  # whatever ran, or failed, before
        try:
            return (yield)
        finally:
            item.stash[HASH] = read.hexdigest()
            read = None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(item, call):
        report = yield
        if call.when == "call" or report.outcome != "passed":
            with open(pathlib.Path(VALUES) / str(os.getpid()), "a") as file:
                file.write(json.dumps([item.nodeid, report.outcome, item.stash.get(HASH, "")]) + "\n")
        return report
