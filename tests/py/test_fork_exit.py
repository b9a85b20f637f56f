"""Ends of a process: exits with work in flight, forks, exceptions, threads."""

import os
import subprocess
import sys
import textwrap

import pytest


def run(code, timeout=60):
    return subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=timeout, env=os.environ
    )


def clean(code, out=""):
    got = run(code)
    assert got.returncode == 0 and got.stderr == "" and got.stdout.strip() == out, got


def test_exit_without_work():
    clean("import dtorch")


def test_exit_with_work_in_flight():
    clean("""
        import dtorch
        a = dtorch.rand(400, 400)
        for _ in range(200): a = a @ a * 1e-3
        f = a.sum().item_async()
        mesh = dtorch.init_device_mesh("cpu", (4,))
        d = dtorch.distribute_tensor(a, mesh, [dtorch.Shard(0)]) + 1
        d.sum().item_async()
    """)


def test_exit_with_an_awaited_future():
    clean("""
        import asyncio, dtorch
        async def main():
            a = dtorch.rand(400, 400)
            for _ in range(200): a = a @ a * 1e-3
            t = asyncio.ensure_future(w(a.sum().item_async()))
            await asyncio.sleep(0)
        async def w(f): await f
        asyncio.run(main())
    """)


def test_exit_with_everything_alive():
    clean(
        """
        import dtorch
        keep = [dtorch.ones(10, requires_grad=True) * i for i in range(100)]
        class Cycle: pass
        c = Cycle(); c.t = keep[0]; keep[0].c = c
        keep[1].register_hook(lambda g: g)
        dtorch._keep = keep
        print(sum(k.sum() for k in keep).item())
    """,
        "49500.0",
    )


def test_calls_from_atexit_functions():
    got = run("""
        import dtorch, atexit
        atexit.register(lambda: print((dtorch.ones(2) + 2).tolist()))
        dtorch.ones(1).item()
    """)
    assert got.stdout.strip() == "[3.0, 3.0]" and got.returncode == 0, got


def test_calls_after_the_end_raise():
    got = run("""
        import atexit
        def late():
            try: dtorch.ones(2) + 1
            except RuntimeError as e: print("raised", e)
        atexit.register(late)
        import dtorch
        dtorch.ones(1).item()
    """)
    assert got.stdout.startswith("raised") and got.returncode == 0, got


def test_an_exception_ends_the_program_cleanly():
    got = run("""
        import dtorch
        x = dtorch.arange(3)[dtorch.tensor([5])]
        x.tolist()
    """)
    assert got.returncode == 1 and "\nIndexError: " in got.stderr and "<string>:3" in got.stderr, got


def test_fork_after_use_raises():
    got = run("""
        import os, dtorch
        x = dtorch.ones(2); x.sum().item()
        pid = os.fork()
        if pid == 0:
            try: print((dtorch.ones(2) + 1).tolist())
            except RuntimeError as e: print("child:", "fork" in str(e))
            try: print(x.tolist())
            except RuntimeError as e: print("child:", "fork" in str(e))
            os._exit(0)
        os.waitpid(pid, 0)
        print("parent:", (x + 1).tolist())
    """)
    assert sorted(got.stdout.split("\n")) == ["", "child: True", "child: True", "parent: [2.0, 2.0]"], got


def test_fork_before_use_works():
    got = run("""
        import os, dtorch
        pid = os.fork()
        print((dtorch.ones(2) + 1).tolist(), flush=True)
        if pid: os.waitpid(pid, 0)
    """)
    assert got.stdout.count("[2.0, 2.0]") == 2, got


def test_a_forked_child_that_exits_normally():
    got = run("""
        import os, sys, dtorch
        dtorch.ones(2).sum().item()
        pid = os.fork()
        if pid == 0: sys.exit(3)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    """)
    assert got.stdout.strip() == "3", got


def test_threads_at_exit():
    clean("""
        import threading, dtorch
        def work():
            for _ in range(200): (dtorch.ones(4) + 1).sum().item()
        t = threading.Thread(target=work); t.start()
    """)


@pytest.mark.parametrize("call", ["os.abort", "os._exit"])
def test_hard_ends_do_not_hang(call):
    got = run(f"import os, dtorch; dtorch.ones(2).sum().item(); {call}({'0' if '_exit' in call else ''})")
    assert got.returncode in (0, -6)
