"""The order of work on several meshes, and simulated times, are functions of the program: not of what ran before it in the process."""

import os
import subprocess
import sys

import dtorch
import pytest
from dtorch import nn
from dtorch.distributed.pipelining import least_bubble, pipeline, schedule

PROGRAMS = r"""
import gc
import hashlib
import sys
import dtorch as torch
from dtorch import Replicate, Shard, distribute_tensor, models, nn
from dtorch.distributed.pipelining import pipeline, schedule
from dtorch.utils.checkpoint import checkpoint

def digest(x):
    return hashlib.sha256(repr(x).encode()).hexdigest()[:12]

def order():
    rows = schedule()
    if not rows:
        return 0
    first, zero = min(r["id"] for r in rows), min(r["begin"] for r in rows)
    keep = ("device", "devices", "open", "opener", "closing", "plain", "calls")
    return digest([[r["id"] - first, r["run"] - first] + [r[k] for k in keep] + [round(1e9 * (r["end"] - r["begin"]))] for r in rows])

def linear(p, m, tie=False):
    mesh = torch.init_device_mesh("cpu", (p,), mesh_dim_names=("pp",))
    made = nn.Sequential(*[nn.Linear(64, 64, bias=False) for _ in range(2 * p)])
    if tie:
        made[-1].weight = made[0].weight
    pipeline(made, mesh["pp"], [2] * p)
    opt = torch.optim.SGD(made.parameters(), lr=1e-3)
    for _ in range(3):
        x = torch.randn(16 * m, 64)
        schedule()
        for a in x.chunk(m):
            (made(a.requires_grad_()).square().mean() / m).backward()
        yield order()
        opt.step()
        opt.zero_grad()

def language(kind, p, m, again):
    mesh = torch.init_device_mesh("cpu", (p,), mesh_dim_names=("pp",))
    if kind == "gpt2":
        made = models.GPT2(models.GPT2Config(vocab_size=64, n_positions=32, n_embd=32, n_layer=2 * p, n_head=2))
        blocks = made.h
    else:
        shape = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2 * p, num_attention_heads=2, num_key_value_heads=1)
        made = models.Llama(models.LlamaConfig(vocab_size=64, **shape))
        blocks = made.layers
    for block in blocks if again else ():
        block.forward = lambda *args, _block=block: checkpoint(type(_block).forward, _block, *args, use_reentrant=False)
    models.parallelize(made, mesh)
    opt = torch.optim.AdamW(made.parameters())
    for _ in range(3):
        schedule()
        for _ in range(m):
            a = models.distribute_batch(mesh, torch.randint(0, 64, (2, 16)))
            (models.next_token_loss(made(a), a) / m).backward()
        yield order()
        opt.step()
        opt.zero_grad()
    for block in blocks if again else ():
        del block.forward

def one_mesh(shape):
    made = nn.Sequential(nn.Linear(50, 40), nn.ReLU(), nn.Linear(40, 7))
    mesh = shape and torch.init_device_mesh("cpu", shape)
    for p in made.parameters() if mesh else ():
        p.data = distribute_tensor(p.data, mesh, [Replicate()] * mesh.ndim)
    opt = torch.optim.SGD(made.parameters(), lr=0.1)
    for i in range(4):
        x = torch.randn(33 + i % 3, 50)
        if mesh:
            x = distribute_tensor(x, mesh, [Shard(0)] + [Replicate()] * (mesh.ndim - 1))
        made(x).square().mean().backward()
        opt.step()
        opt.zero_grad()
    made(x).sum().item()
    return ()

def simulated(devices, program, *args):
    with torch.simulate("a100-8x", devices=devices) as sim:
        found = list(program(*args))
    r = sim.report()
    return found, digest([(s.seconds.hex(), s.bubble.hex(), s.plans_built, s.calls) for s in r.steps]), digest(r.peak)

RUN = {
    "two": lambda: simulated(2, linear, 2, 5),
    "four": lambda: simulated(4, linear, 4, 6),
    "gpt2": lambda: simulated(4, language, "gpt2", 4, 6, False),
    "gpt2-again": lambda: simulated(3, language, "gpt2", 3, 4, True),
    "llama-again": lambda: simulated(4, language, "llama", 4, 5, True),
    "one": lambda: simulated(8, one_mesh, (2, 3)),
    "plain": lambda: simulated(1, one_mesh, None),
    "real": lambda: list(linear(3, 5)),
    "real-tied": lambda: list(linear(2, 4, True)),
    "real-one": lambda: list(one_mesh((2,))),
}
for name in sys.argv[1:]:
    torch.manual_seed(0)
    print(name, *RUN[name](), flush=True)
    gc.collect()
"""
NAMES = ["two", "four", "real", "gpt2", "one", "gpt2-again", "real-tied", "llama-again", "plain", "real-one"]


def said(names):
    done = subprocess.run([sys.executable, "-c", PROGRAMS, *names], capture_output=True, text=True, timeout=300, env={**os.environ, "DTORCH_OFF": ""})
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == names
    return lines


@pytest.mark.every_pass("virtual times and plans are those of all passes and of no further cuts")
def test_programs_before_change_nothing():
    """Each program's order, simulated times, peaks and plans built, wherever in a process it runs: first, twice in a row, after pipelines with other stages,
    tied and untied, and after programs on one mesh."""
    first = {line.split()[0]: line for names in (NAMES[:1], NAMES[3:4], NAMES[5:6], NAMES[7:8]) for line in said(names)}
    for names in (NAMES + NAMES[:3], NAMES[::-1] + NAMES[2:6], NAMES[4:] + NAMES[7:5:-1]):
        for line in said(names):
            assert line == first.setdefault(line.split()[0], line)
    assert len(set(first.values())) == len(NAMES)


def test_one_mesh_after_several_is_a_program_of_its_own():
    """After three steps on one mesh nothing goes to segments any more, and what is recorded is replayed in chunks; a change of mesh brings the order back."""
    mesh = dtorch.init_device_mesh("cpu", (2,), mesh_dim_names=("pp",))
    made = pipeline(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), mesh["pp"], [1, 1])
    alone = nn.Sequential(*[nn.Linear(8, 8) for _ in range(8)])

    def ordered(model):
        schedule()
        model(dtorch.ones(3, 8)).square().mean().backward()
        return len(schedule()) > 0

    assert ordered(made) and ordered(made)
    assert [ordered(alone) for _ in range(6)] == [True] * 3 + [False] * 3
    assert ordered(made) and ordered(alone)


def test_least_bubble():
    """Equal stages: the formula. Uneven ones: the dearest stage is never idle but while the first micro-batch comes and the last one goes."""
    for p, m in ((1, 3), (2, 4), (8, 16)):
        assert least_bubble([3.0 * m] * p, m) == pytest.approx((p - 1) / (m + p - 1))
    assert least_bubble([4, 8, 4], 4) == pytest.approx(1 - 16 / (3 * 9))
    with pytest.raises(ValueError, match="micro-batches"):
        least_bubble([], 1)
