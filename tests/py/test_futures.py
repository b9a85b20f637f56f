"""Futures: get, wait, done, await; waiting that can be interrupted."""

import asyncio
import os
import subprocess
import sys
import textwrap
import threading

import dtorch
import pytest


def test_values():
    x = dtorch.arange(6).view(2, 3)
    f, g, h = x.sum().item_async(), x.tolist_async(), x.numpy_async()
    assert f.get() == 15 and g.get() == [[0, 1, 2], [3, 4, 5]] and (h.get() == x.numpy()).all()
    assert f.done() and f.wait() and f.wait(0) and f.get() == 15 and h.get() is h.get()
    s = dtorch.synchronize_async()
    assert s.get() is None and s.done()
    assert dtorch.futures.wait_all([dtorch.tensor(i).item_async() for i in range(5)]) == list(range(5))
    assert isinstance(f, dtorch.Future) and dtorch.synchronize() is None


def test_wait_has_a_limit():
    a = dtorch.rand(700, 700)
    for _ in range(30):
        a = a @ a * 1e-3
    f = a.sum().item_async()
    first = f.wait(0)
    assert first in (True, False) and f.wait(60) is True and f.done()
    for bad in (-1, float("nan")):
        with pytest.raises(ValueError, match="timeout"):
            f.wait(bad)
    with pytest.raises(TypeError):
        f.wait("a")


def test_the_value_is_the_one_at_the_call():
    x = dtorch.zeros(3)
    f = x.tolist_async()
    x.add_(1)
    assert f.get() == [0, 0, 0] and x.tolist() == [1, 1, 1]


def test_await():
    async def one(i):
        x = dtorch.full((50, 50), float(i))
        for _ in range(5):
            x = x @ x * 0.01
        return await x.sum().item_async(), await dtorch.tensor(i).item_async()

    async def main():
        got = await asyncio.gather(*(one(i) for i in range(20)))
        f = dtorch.tensor(7).item_async()
        twice = await asyncio.gather(again(f), again(f))
        await dtorch.synchronize_async()
        return [b for _, b in got], twice

    async def again(f):
        return await f

    for _ in range(3):  # several event loops, one after the other
        assert asyncio.run(main()) == (list(range(20)), [7, 7])


def test_await_raises_late_errors():
    async def main():
        with pytest.raises(IndexError):
            await dtorch.arange(3)[dtorch.tensor([7])].tolist_async()
        return await dtorch.tensor(1).item_async()

    assert asyncio.run(main()) == 1


def test_the_loop_is_not_blocked():
    async def main():
        a = dtorch.rand(600, 600)
        for _ in range(40):
            a = a @ a * 1e-3
        f = a.sum().item_async()
        ticks = 0

        async def tick():
            nonlocal ticks
            while not f.done():
                ticks += 1
                await asyncio.sleep(0.001)

        await asyncio.gather(tick(), waiter(f))
        return ticks

    async def waiter(f):
        return await f

    assert asyncio.run(main()) > 0


def test_errors():
    with pytest.raises(RuntimeError, match="2 elements"):
        dtorch.zeros(2).item_async()
    with pytest.raises(TypeError, match="BFloat16"):
        dtorch.zeros(2, dtype=dtorch.bfloat16).numpy_async()
    f = dtorch.arange(3)[dtorch.tensor([7])].tolist_async()
    with pytest.raises(IndexError):
        f.get()
    assert f.done() and f.wait(1)


def test_other_threads_run_while_one_waits():
    a = dtorch.rand(500, 500)
    for _ in range(20):
        a = a @ a * 1e-3
    n = 0

    def count():
        nonlocal n
        for _ in range(1000):
            n += 1

    t = threading.Thread(target=count)
    f = a.sum().item_async()
    t.start()
    f.get()
    t.join()
    assert n == 1000


def test_calls_from_several_threads():
    results = {}

    def work(i):
        x = dtorch.full((10,), float(i))
        for _ in range(50):
            x = x + 1
        results[i] = x.sum().item()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert results == {i: 10.0 * (i + 50) for i in range(6)}


def test_ctrl_c_interrupts_a_wait():
    code = textwrap.dedent("""
        import os, signal, threading, time, dtorch
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs, and what they start, ignore it
        a = dtorch.rand(1500, 1500)
        for _ in range(400): a = a @ a * 1e-3
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        t = time.time()
        try:
            a.sum().item()
            print("too fast")
        except KeyboardInterrupt:
            print("interrupted", time.time() - t < 5)
        os._exit(0)
    """)
    got = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, env=os.environ)
    assert got.stdout.split() == ["interrupted", "True"], got


def test_threads_read_beside_each_other():
    """Whoever waits does the work; also a thread whose stack has no room for that."""
    wrong, size = [], threading.stack_size()

    def read(k):
        for i in range(200):
            if (dtorch.tensor([float(i)]) * k + 1).item() != i * k + 1:
                wrong.append((k, i))

    try:
        threading.stack_size(512 << 10)
        small = [threading.Thread(target=read, args=(k,)) for k in range(2)]
        for t in small:
            t.start()
    finally:
        threading.stack_size(size)
    big = [threading.Thread(target=read, args=(k,)) for k in range(2, 4)]
    for t in big:
        t.start()
    read(5)
    for t in small + big:
        t.join()
    assert not wrong
