"""utils.data: data sets, samplers, collating, the loader without workers, with threads and with processes.

FRAMEWORK=torch runs the same tests on PyTorch, but for those of threads.
"""

import collections
import gc
import importlib
import os
import threading
import time

import numpy as np
import pytest

FRAMEWORK = os.environ.get("FRAMEWORK", "dtorch")
torch = importlib.import_module(FRAMEWORK)
data = importlib.import_module(f"{FRAMEWORK}.utils.data")
own = pytest.mark.skipif(FRAMEWORK != "dtorch", reason="PyTorch has no worker threads, and no state of a loader")
WORKERS = 3 if FRAMEWORK == "dtorch" else 0


class Squares(data.Dataset):
    def __init__(self, n=10, fail_at=None, error=None, slow=0.0):
        self.n, self.fail_at, self.error, self.slow = n, fail_at, error, slow

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        if self.slow:
            time.sleep(self.slow)
        if i == self.fail_at:
            raise self.error
        return i, float(i * i)


class Count(data.IterableDataset):
    def __init__(self, n=11):
        self.n = n

    def __iter__(self):
        info = data.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        yield from range(first, self.n, step)

    def __len__(self):
        return self.n


class TwoArguments(Exception):
    def __init__(self, a, b):
        super().__init__(a, b)


def test_tensor_dataset_and_subsets():
    d = data.TensorDataset(torch.arange(12).view(6, 2), torch.arange(6))
    assert len(d) == 6 and [x.tolist() for x in d[2]] == [[4, 5], 2]
    s = data.Subset(d, [5, 0])
    assert len(s) == 2 and s[0][1].item() == 5
    with pytest.raises(AssertionError, match="Size mismatch"):
        data.TensorDataset(torch.zeros(2), torch.zeros(3))


def test_batches_of_a_tensor_dataset():
    x, y = torch.arange(12.0).view(6, 2), torch.arange(6)

    class Doubled(data.TensorDataset):
        def __getitem__(self, i):
            return tuple(t * 2 for t in super().__getitem__(i))

    whole = data.TensorDataset(x, y)
    for d in (whole, Doubled(x, y), data.Subset(whole, [5, 4, 1, 3]), data.Subset(data.Subset(whole, [5, 4, 1, 3]), [1, 3, 2, 0])):
        order = [3, -1, 0]
        a, b = next(iter(data.DataLoader(d, batch_size=3, sampler=order)))
        want = [d[i] for i in order]
        assert a.tolist() == [w[0].tolist() for w in want] and b.tolist() == [w[1].tolist() for w in want]
        assert a.dtype == x.dtype and b.dtype == y.dtype and type(next(iter(data.DataLoader(d)))) is list


def test_joined_datasets():
    c = data.ConcatDataset([range(3), range(5)])
    assert [c[i] for i in range(8)] == [0, 1, 2, 0, 1, 2, 3, 4] and c[-1] == 4 and len(c) == 8 and c.cumulative_sizes == [3, 8]
    with pytest.raises(ValueError, match="should not exceed dataset length"):
        c[-9]
    assert len(Squares(3) + Squares(4)) == 7
    assert list(data.ChainDataset([Count(2), Count(3)])) == [0, 1, 0, 1, 2] and list(Count(1) + Count(2)) == [0, 0, 1]
    s = data.StackDataset(a=range(3), b=[7, 8, 9])
    assert s[1] == {"a": 1, "b": 8} and len(s) == 3 and data.StackDataset(range(3), [7, 8, 9])[2] == (2, 9)


def test_random_split():
    a, b, c = data.random_split(range(10), [0.35, 0.35, 0.3])
    assert [len(x) for x in (a, b, c)] == [4, 3, 3] and sorted([*a, *b, *c]) == list(range(10))
    first = [list(x) for x in data.random_split(range(10), [7, 3], torch.Generator().manual_seed(1))]
    again = [list(x) for x in data.random_split(range(10), [7, 3], torch.Generator().manual_seed(1))]
    other = [list(x) for x in data.random_split(range(10), [7, 3], torch.Generator().manual_seed(2))]
    assert first == again != other
    with pytest.raises(ValueError, match="Sum of input lengths does not equal"):
        data.random_split(range(10), [7, 2])


def test_samplers():
    assert list(data.SequentialSampler(range(4))) == [0, 1, 2, 3]
    order = list(data.RandomSampler(range(50)))
    assert sorted(order) == list(range(50)) != order and order != list(data.RandomSampler(range(50)))
    seeded = [list(data.RandomSampler(range(50), generator=torch.Generator().manual_seed(3))) for _ in range(2)]
    assert seeded[0] == seeded[1]
    more = list(data.RandomSampler(range(3), num_samples=8))
    assert len(more) == 8 and sorted(more[:3]) == sorted(more[3:6]) == [0, 1, 2]
    drawn = list(data.RandomSampler(range(3), replacement=True, num_samples=3000))
    assert len(drawn) == 3000 and all(800 < drawn.count(i) < 1200 for i in range(3))
    assert sorted(data.SubsetRandomSampler([5, 7, 9])) == [5, 7, 9]
    weighted = list(data.WeightedRandomSampler([0.0, 1.0, 3.0], 2000))
    assert weighted.count(0) == 0 and 1300 < weighted.count(2) < 1700
    assert sorted(data.WeightedRandomSampler([1.0, 1.0, 1.0], 3, replacement=False)) == [0, 1, 2]
    b = data.BatchSampler(range(7), 3, False)
    assert list(b) == [[0, 1, 2], [3, 4, 5], [6]] and len(b) == 3
    b = data.BatchSampler(data.SequentialSampler(range(7)), 3, True)
    assert list(b) == [[0, 1, 2], [3, 4, 5]] and len(b) == 2
    for act in (
        lambda: data.BatchSampler(range(3), 0, False),
        lambda: data.RandomSampler(range(3), num_samples=0),
        lambda: data.WeightedRandomSampler([1.0], 0),
    ):
        with pytest.raises(ValueError, match="should be a positive integer value"):
            act()


Point = collections.namedtuple("Point", "x y")


def test_default_collate():
    collate = data.default_collate

    def same(got, values, dtype):
        assert got.tolist() == values and got.dtype == dtype

    same(collate([1, 2]), [1, 2], torch.int64)
    same(collate([1.5, 2.0]), [1.5, 2.0], torch.float64)
    same(collate([np.float32(1), np.float32(2)]), [1, 2], torch.float32)
    same(collate([np.zeros(2, np.int16)] * 2), [[0, 0], [0, 0]], torch.int16)
    same(collate([torch.ones(2), torch.zeros(2)]), [[1, 1], [0, 0]], torch.float32)
    assert collate(["a", "b"]) == ["a", "b"]
    got = collate([{"a": 1, "b": (2, "s")}, {"a": 3, "b": (4, "t")}])
    assert got["a"].tolist() == [1, 3] and got["b"][0].tolist() == [2, 4] and list(got["b"][1]) == ["s", "t"]
    got = collate([Point(1, 2.0), Point(3, 4.0)])
    assert isinstance(got, Point) and got.x.tolist() == [1, 3]
    assert [x.tolist() for x in collate([[1, 2], [3, 4]])] == [[1, 3], [2, 4]]
    with pytest.raises(RuntimeError, match="each element in list of batch should be of equal size"):
        collate([[1], [1, 2]])
    with pytest.raises(TypeError, match="must contain tensors, numpy arrays, numbers, dicts or lists; found"):
        collate([object()])
    back = data.default_convert({"a": np.ones(2), "b": "s", "c": Point(np.float32(1), 2)})
    assert back["a"].tolist() == [1, 1] and back["b"] == "s" and back["c"].y == 2 and isinstance(back["c"].x, torch.Tensor)


@pytest.mark.parametrize("workers", [0, WORKERS])
def test_batches(workers):
    d = Squares()
    loader = data.DataLoader(d, batch_size=4, num_workers=workers)
    for _ in range(2):
        got = [(a.tolist(), b.tolist()) for a, b in loader]
        assert got == [([0, 1, 2, 3], [0, 1, 4, 9]), ([4, 5, 6, 7], [16, 25, 36, 49]), ([8, 9], [64, 81])]
    assert len(loader) == 3 and len(data.DataLoader(d, batch_size=4, drop_last=True)) == 2
    assert len(list(data.DataLoader(d, batch_size=4, drop_last=True, num_workers=workers))) == 2
    assert list(data.DataLoader(d, batch_size=None, num_workers=workers))[3] == [3, 9.0]
    got = data.DataLoader(d, batch_sampler=[[3, 1], [2]], num_workers=workers)
    assert [a.tolist() for a, _ in got] == [[3, 1], [2]]
    got = data.DataLoader(d, batch_size=2, sampler=[5, 4, 3], collate_fn=lambda batch: [i for i, _ in batch], num_workers=workers)
    assert list(got) == [[5, 4], [3]]


@pytest.mark.parametrize("workers", [0, WORKERS])
def test_shuffling_follows_the_seed(workers):
    def order(seed, generator=False):
        torch.manual_seed(seed)
        g = torch.Generator().manual_seed(seed) if generator else None
        loader = data.DataLoader(Squares(40), batch_size=8, shuffle=True, num_workers=workers, generator=g)
        return [i for _ in range(2) for a, _ in loader for i in a.tolist()]

    assert order(1) == order(1) != order(2) and order(1, True) == order(1, True)
    both = order(3)
    assert sorted(both[:40]) == list(range(40)) == sorted(both[40:]) and both[:40] != both[40:]


def test_streams():
    assert [b.tolist() for b in data.DataLoader(Count(), batch_size=4)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]
    assert len(data.DataLoader(Count(), batch_size=4)) == 3 and len(list(data.DataLoader(Count(), batch_size=4, drop_last=True))) == 2
    assert list(data.DataLoader(Count(3), batch_size=None)) == [0, 1, 2]


@own
def test_streams_with_workers():
    got = [b.tolist() for b in data.DataLoader(Count(), batch_size=2, num_workers=3)]
    assert got == [[0, 3], [1, 4], [2, 5], [6, 9], [7, 10], [8]]
    uneven = [b.tolist() for b in data.DataLoader(Count(2), batch_size=2, num_workers=3)]  # one worker has nothing
    assert uneven == [[0], [1]]


@pytest.mark.parametrize(
    ("kw", "text"),
    [
        ({"num_workers": -1}, "num_workers option should be non-negative"),
        ({"timeout": -1}, "timeout option should be non-negative"),
        ({"prefetch_factor": 2}, "prefetch_factor option could only be specified in multiprocessing"),
        ({"persistent_workers": True}, "persistent_workers option needs num_workers > 0"),
        ({"shuffle": True, "sampler": [1]}, "sampler option is mutually exclusive with shuffle"),
        ({"batch_sampler": [[1]], "batch_size": 2}, "batch_sampler option is mutually exclusive"),
        ({"batch_size": None, "drop_last": True}, "batch_size=None option disables auto-batching"),
        ({"batch_size": 0}, "batch_size should be a positive integer value"),
        ({"multiprocessing_context": "spawn"}, "multiprocessing_context can only be used with"),
    ],
)
def test_errors_of_options(kw, text):
    with pytest.raises(ValueError, match=text):
        data.DataLoader(Squares(), **kw)
    with pytest.raises(ValueError, match="expected unspecified shuffle option"):
        data.DataLoader(Count(), shuffle=True)
    with pytest.raises(ValueError, match="batch_size attribute should not be set after DataLoader is initialized"):
        data.DataLoader(Squares()).batch_size = 3


@own
@pytest.mark.parametrize("error", [ValueError("boom"), KeyError("boom"), TwoArguments("boom", 2)], ids=lambda e: type(e).__name__)
def test_an_error_of_a_worker_reaches_the_caller_and_the_rest_still_comes(error):
    it = iter(data.DataLoader(Squares(6, 3, error), batch_size=1, num_workers=2))
    got = [next(it)[0].item() for _ in range(3)]
    expected = type(error) if len(error.args) == 1 else RuntimeError
    with pytest.raises(expected, match=rf"Caught {type(error).__name__} in DataLoader worker thread 1") as e:
        next(it)
    assert "in __getitem__" in str(e.value) and "boom" in str(e.value)
    got += [x[0].item() for x in it]
    assert got == [0, 1, 2, 4, 5]


@own
def test_workers_know_themselves_and_have_a_data_set_of_their_own():
    seen = {}

    def init(worker):
        info = data.get_worker_info()
        info.dataset.n = 4  # of this worker's copy only
        seen[worker] = (info.id, info.num_workers, info.seed)

    d = Squares()
    loader = data.DataLoader(d, num_workers=2, worker_init_fn=init, collate_fn=lambda b: data.get_worker_info().id)
    assert list(loader) == [0, 1] * 5 and d.n == 10
    assert sorted(x[:2] for x in seen.values()) == [(0, 2), (1, 2)] and seen[1][2] == seen[0][2] + 1
    assert data.get_worker_info() is None


@own
def test_work_is_ahead_and_in_parallel():
    loader = data.DataLoader(Squares(8, slow=0.05), batch_size=1, num_workers=4)
    begin = time.monotonic()
    assert [a.item() for a, _ in loader] == list(range(8))
    assert time.monotonic() - begin < 0.3  # 0.4 one after the other
    it = iter(data.DataLoader(Squares(100), batch_size=1, num_workers=2, prefetch_factor=3))
    time.sleep(0.05)
    assert it._sent == 6
    next(it)
    assert it._sent == 7


@own
def test_timeout():
    it = iter(data.DataLoader(Squares(2, slow=0.5), num_workers=1, timeout=0.1))
    with pytest.raises(RuntimeError, match="DataLoader timed out after 0.1 seconds"):
        next(it)


@own
def test_persistent_workers_and_abandoned_passes():
    started = []
    loader = data.DataLoader(Squares(), batch_size=2, num_workers=2, persistent_workers=True, worker_init_fn=started.append)
    it = iter(loader)
    next(it)  # and the rest of this pass is never taken
    for _ in range(3):
        assert [i for a, _ in loader for i in a.tolist()] == list(range(10))
    assert sorted(started) == [0, 1]
    before = threading.active_count()
    del it, loader
    gc.collect()
    deadline = time.monotonic() + 5
    while threading.active_count() > before - 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before - 2


def unpicklable(batch):
    return lambda: batch


class Mixed(data.Dataset):
    """Tensors of several dtypes, made in the worker; one position fails."""

    def __len__(self):
        return 6

    def __getitem__(self, i):
        if i == 5:
            raise ValueError("in a process")
        return torch.full((2,), i, dtype=torch.bfloat16), torch.tensor(i), np.float32(i)


@own
def test_processes():
    it = iter(data.DataLoader(Mixed(), batch_size=1, num_workers=2, multiprocessing_context="spawn", timeout=60))
    for i in range(5):
        a, b, c = next(it)
        assert a.dtype == torch.bfloat16 and a.float().tolist() == [[i, i]] and b.tolist() == [i] and c.tolist() == [i]
    with pytest.raises(ValueError, match="Caught ValueError in DataLoader worker process 1"):
        next(it)
    assert list(it) == []
    it = iter(data.DataLoader(Mixed(), num_workers=1, multiprocessing_context="spawn", timeout=60, collate_fn=unpicklable))
    with pytest.raises(Exception, match="in DataLoader worker process 0"):
        next(it)
    with pytest.raises(ValueError, match="would copy the engine without its threads"):
        next(iter(data.DataLoader(Mixed(), num_workers=1, multiprocessing_context="fork")))


def _rest(loader, state=None):
    if state is not None:
        loader.load_state_dict(state)
    out = []
    for batch in loader:
        torch.rand(3)  # what a training step draws
        out.append(batch.tolist())
    return out


@own
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["plain", "shuffle", "own", "replacement", "subset", "batch_sampler", "no batches"])
def test_a_pass_goes_on_where_it_was(kind, workers):
    def make():
        options = {"batch_size": 4, "num_workers": workers}
        generator = torch.Generator().manual_seed(7) if kind == "own" else None
        if kind in ("shuffle", "own"):
            options.update(shuffle=True, generator=generator)
        elif kind == "replacement":
            options.update(sampler=data.RandomSampler(range(26), replacement=True, num_samples=1100))
        elif kind == "subset":
            options.update(sampler=data.SubsetRandomSampler(list(range(20))))
        elif kind == "batch_sampler":
            options = {"batch_sampler": data.BatchSampler(data.RandomSampler(range(26)), 3, True), "num_workers": workers}
        elif kind == "no batches":
            options.update(batch_size=None, shuffle=True)
        return data.DataLoader(torch.arange(26) * 10, **options)

    for stop in (0, 1, 3, 10**9):
        torch.manual_seed(1)
        loader = make()
        list(loader)  # a pass before
        it = iter(loader)
        n = sum(1 for _, _ in zip(range(stop), it, strict=False) if torch.rand(2).numel())
        state, rng = loader.state_dict(), torch.get_rng_state()
        if stop >= 10**9:
            assert next(it, None) is None
            state = loader.state_dict()
        want = [b.tolist() for b in it if torch.rand(3).numel()] + _rest(loader)
        assert n == stop or stop > 1000
        torch.manual_seed(99)
        other = make()
        torch.set_rng_state(rng)
        got = _rest(other, state)
        if len(got) < len(want):
            got += _rest(other)
        assert got == want, (kind, stop)


@own
def test_a_stream_goes_on_where_it_was():
    class Stream(data.IterableDataset):
        def __iter__(self):
            return iter(range(20))

    loader = data.DataLoader(Stream(), batch_size=3)
    it = iter(loader)
    next(it), next(it)
    state = loader.state_dict()
    other = data.DataLoader(Stream(), batch_size=3)
    other.load_state_dict(state)
    assert other.state_dict() == state
    assert [b.tolist() for b in other] == [b.tolist() for b in it]
    assert other.state_dict()["start"] is None
