"""host_call: Python functions in the stream of calls, and how their failures surface."""

import threading

import dtorch
import numpy as np
import pytest
from dtorch import Shard, distribute_tensor, init_device_mesh


def test_values_types_and_order():
    x = dtorch.arange(6.0).view(2, 3)
    y, n = dtorch.host_call(lambda a: (a.T * 2, np.int64(a.size)), x + 1, out=[((3, 2), dtorch.float32), ((), dtorch.int64)])
    assert n.item() == 6
    np.testing.assert_array_equal((y + 1).numpy(), (np.arange(6).reshape(2, 3) + 1).T * 2 + 1)


def test_distributed_inputs_are_gathered_and_it_runs_elsewhere():
    t = distribute_tensor(dtorch.arange(5), init_device_mesh("cpu", (2,)), [Shard(0)])
    seen = []
    r = dtorch.host_call(
        lambda a: seen.append(threading.current_thread() is threading.main_thread()) or a[::-1].copy(), t, out=((5,), dtorch.int64)
    )
    assert r.tolist() == [4, 3, 2, 1, 0] and seen == [False]


def test_a_failure_is_late_and_names_the_line():
    def broken(a):
        raise LookupError("no such word: grue")

    x = dtorch.ones(3)
    y = dtorch.host_call(broken, x, out=((3,), dtorch.float32))  # the failing call
    z, good = y * 2, x * 2
    assert good.tolist() == [2, 2, 2]
    with pytest.raises(RuntimeError, match="LookupError: no such word: grue") as e:
        z.sum().item()
    line = (
        open(__file__).read().split("\n").index("    y = dtorch.host_call(broken, x, out=((3,), dtorch.float32))  # the failing call") + 1
    )
    assert f"{line}" in str(e.value) and "test_host_call.py" in str(e.value)
    assert (x + 1).sum().item() == 6


def test_wrong_results_and_arrays_that_are_kept():
    x = dtorch.ones(3)
    with pytest.raises(RuntimeError, match="returned shape"):
        dtorch.host_call(lambda a: a[:2].copy(), x, out=((3,), dtorch.float32)).tolist()
    kept = []
    assert dtorch.host_call(lambda a: kept.append(a) or a * 2, x + 1, out=((3,), dtorch.float32)).tolist() == [4, 4, 4]
    dtorch.randn(3).tolist()
    np.testing.assert_array_equal(kept[0], [2, 2, 2])
    with pytest.raises(ValueError):
        kept[0][0] = 1
    with pytest.raises(TypeError, match="bfloat16"):
        dtorch.host_call(lambda a: a, x.bfloat16(), out=((3,), dtorch.float32))
    with pytest.raises(TypeError):
        dtorch.host_call(lambda a: a, 3, out=((3,), dtorch.float32))
