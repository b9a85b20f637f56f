"""What a plain loop over micro-batches costs on p stages: virtual time against theory, and the clock on the wall.

python bench/pipeline.py            # virtual: bubble and activations in flight for several p and m
python bench/pipeline.py --models   # idle shares of language models on simulated H100s, plain, with activations made again, with tied weights
python bench/pipeline.py --wall     # seconds of a step on two stages of one thread each, interleaved and in the order of the stream
"""

import argparse
import os
import statistics
import subprocess
import sys
import time

import dtorch
from dtorch import init_device_mesh, models, nn
from dtorch.distributed.pipelining import least_bubble, pipeline, schedule
from dtorch.utils.checkpoint import checkpoint


def model(stages, wide, layers=2):
    dtorch.manual_seed(0)
    made = nn.Sequential(*[f for _ in range(layers * stages) for f in (nn.Linear(wide, wide, bias=False), nn.Tanh())])
    if stages > 1:
        pipeline(made, init_device_mesh("cpu", (stages,), mesh_dim_names=("pp",))["pp"], [2 * layers] * stages)
    return made


def step(made, opt, x, micro):
    for a in x.chunk(micro):
        (made(a.requires_grad_()).square().mean() / micro).backward()
    opt.step()
    opt.zero_grad()


def virtual():
    print("stages  micro-batches  bubble  (p-1)/(m+p-1)  held by each stage")
    for p, m in ((2, 4), (2, 8), (4, 4), (4, 8), (4, 16), (8, 16), (8, 32)):
        made = model(p, 256)
        opt = dtorch.optim.SGD(made.parameters(), lr=1e-3)
        for _ in range(2):
            x = dtorch.randn(64 * m, 256)
            schedule()
            for a in x.chunk(m):
                (made(a.requires_grad_()).square().mean() / m).backward()
            got = schedule()
            opt.step()
            opt.zero_grad()
        bubble = sum(got.bubble().values()) / p
        held = [max(1, h) for h in got.in_flight().values()]
        print(f"{p:6}  {m:13}  {bubble:6.3f}  {(p - 1) / (m + p - 1):13.3f}  {held}", flush=True)
        if (p, m) == (4, 8):
            print(got)


def language(kind, stages, layers=2):
    if kind == "tied":
        made = models.GPT2(models.GPT2Config(vocab_size=4096, n_positions=2048, n_embd=2048, n_layer=layers * stages, n_head=16))
    else:
        shape = dict(hidden_size=2048, intermediate_size=7168, num_hidden_layers=layers * stages, num_attention_heads=16)
        made = models.Llama(models.LlamaConfig(vocab_size=512, **shape))
    for block in made.layers if kind == "again" else ():
        block.forward = lambda *args, _block=block: checkpoint(type(_block).forward, _block, *args, use_reentrant=False)
    return made


def simulated(kind, stages, micro):
    """The second step, and the most micro-batches that any stage holds."""
    with dtorch.simulate({**dtorch._simulate.load_hardware("h100-8x"), "memory": 0}, devices=stages) as sim:
        mesh = init_device_mesh("cuda", (stages,), mesh_dim_names=("pp",))
        made = language(kind, stages)
        models.parallelize(made, mesh)
        for _ in range(2):
            sim.step()
            schedule()
            for _ in range(micro):
                a = models.distribute_batch(mesh, dtorch.randint(0, 512, (1, 2048)))
                with dtorch.autocast("cuda", dtype=dtorch.bfloat16):
                    loss = models.next_token_loss(made(a), a)
                (loss / micro).backward()
            held = schedule().in_flight()
            sim.step()
        for block in made.layers if kind == "again" else ():
            del block.forward  # a circle
    return sim.report().steps[-1], held


def of_models():
    print("stages  micro-batches  model  idle  least  with transfers  (p-1)/(m+p-1)  held at most")
    for kind in ("plain", "again", "tied"):
        for p in (2, 3, 4, 8, 16):
            for m in (p, 2 * p, 4 * p):
                step, held = simulated(kind, p, m)
                work = [a + b for a, b in zip(step.device_busy, step.device_exposed)]
                least, moved = least_bubble(step.device_busy, m), least_bubble(work, m)
                formula = (p - 1) / (m + p - 1)
                print(f"{p:6}  {m:13}  {kind}  {step.bubble:.3f}  {least:.3f}  {moved:.3f}  {formula:.3f}  {max(held.values())}", flush=True)
                assert all(h <= p - i for i, h in held.items())


def seconds(stages, micro, wide=1024, rows=256, times=7):
    dtorch.set_num_threads(stages)  # one each
    made = model(stages, wide)
    opt = dtorch.optim.SGD(made.parameters(), lr=1e-3)
    x = dtorch.randn(rows * micro, wide)
    took = []
    for _ in range(times):
        dtorch.synchronize()
        begin = time.perf_counter()
        step(made, opt, x, micro)
        dtorch.synchronize()
        took.append(time.perf_counter() - begin)
    return statistics.median(took[2:])


def wall():
    print("micro-batches  interleaved  as it came  ratio  theory")
    for m in (1, 2, 4, 8):
        got = []
        for off in ("", "order"):
            env = {**os.environ, "DTORCH_OFF": off}
            done = subprocess.run([sys.executable, __file__, "--one", str(m)], env=env, capture_output=True, text=True, check=True)
            got.append(float(done.stdout))
        print(f"{m:13}  {got[0]:9.3f} s  {got[1]:8.3f} s  {got[0] / got[1]:5.2f}  {(m + 1) / (2 * m):6.2f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wall", action="store_true")
    parser.add_argument("--models", action="store_true")
    parser.add_argument("--one", type=int)
    options = parser.parse_args()
    if options.one:
        print(seconds(2, options.one))
    elif options.wall:
        wall()
    elif options.models:
        of_models()
    else:
        virtual()
