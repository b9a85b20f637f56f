"""What a call costs the engine when the stream repeats: processor time per call of the controller's thread and the worker's, with replay on and off.

    python bench/replay.py            two programs: steps of 1,000 small calls; a training step of a small GPT (0.13 M parameters)

Each line is a process of its own. Threads are told apart by name in /proc/self/task (Linux). The controller's time includes finding the plan, binding memory,
pushing the run, and sleeping and waking; the worker's includes the kernels.
"""

import os
import subprocess
import sys
import time


def processor_times():
    """Nanoseconds by thread name."""
    times = {}
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{task}/comm") as name, open(f"/proc/self/task/{task}/schedstat") as stat:
            key = name.read().strip()
            times[key] = times.get(key, 0) + int(stat.read().split()[0])
    return times


def small_calls():
    """1,000 dependent calls on 16 floats; one step."""
    import dtorch

    x = dtorch.ones(16)
    state = [x]

    def step():
        y = state[0]
        for _ in range(250):
            y = ((y * 0.5 + x).relu()) - 0.25
        state[0] = y

    return step, 300


def small_gpt():
    """Forward, backward and AdamW of 2 layers of width 64, batch 4 of 64 tokens."""
    import dtorch
    from dtorch import models

    dtorch.manual_seed(0)
    model = models.GPT2(models.GPT2Config(vocab_size=512, n_positions=64, n_embd=64, n_layer=2, n_head=4))
    optimizer = dtorch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = dtorch.randint(0, 512, (4, 65))

    def step():
        loss = dtorch.nn.functional.cross_entropy(model(tokens[:, :-1]).reshape(-1, 512), tokens[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step, int(os.environ.get("STEPS", "100"))


def measure(program):
    """One line: nanoseconds a call."""
    import dtorch

    dtorch.set_num_threads(1)
    step, steps = {"small_calls": small_calls, "small_gpt": small_gpt}[program]()
    for _ in range(20):
        step()
    dtorch.synchronize()
    before, stats, begin = processor_times(), dtorch.cache_stats(), time.perf_counter()
    for _ in range(steps):
        step()
    dtorch.synchronize()
    wall, after, now = time.perf_counter() - begin, processor_times(), dtorch.cache_stats()
    calls = now["calls"] - stats["calls"]

    def each(prefix):
        return sum(t - before.get(name, 0) for name, t in after.items() if name.startswith(prefix)) / calls

    replayed = (now["calls_replayed"] - stats["calls_replayed"]) / calls
    columns = each("dt-controller"), each("dt-cpu"), each("python"), wall * 1e9 / calls, calls / steps
    print(*(f"{c:10.0f}" for c in columns), f"{replayed:9.0%}")


def main():
    """All lines, each in its own process."""
    print(f"{'ns a call':<24} {'controller':>10} {'worker':>10} {'client':>10} {'wall':>10} {'calls/step':>10} {'replayed':>9}")
    for program in ("small_calls", "small_gpt"):
        for off in ("", "replay", "cache"):
            print(f"{program + (', ' + off + ' off' if off else ''):<24} ", end="", flush=True)
            subprocess.run([sys.executable, __file__, program], env=os.environ | {"DTORCH_OFF": off}, check=True)


if __name__ == "__main__":
    measure(sys.argv[1]) if len(sys.argv) > 1 else main()
