"""Every pass of the engine is neutral: values are bitwise the same with each one left out, and wherever the stream is cut.

One program in a process of its own, so that the switches apply: random programs on random meshes, chains in every dtype, a training loop.
"""

import os
import subprocess
import sys

import pytest

PROGRAM = r"""
import hashlib, os, sys
import numpy as np
import dtorch
from dtorch import nn
from dtorch.nn import functional as F
from dtorch.distributed import Replicate, Shard, init_device_mesh
from dtorch import distribute_tensor
sys.path.insert(0, os.path.dirname(__file__) or ".")
from test_random_programs import MESHES, numbers, run

digest = hashlib.sha256()
def note(t):
    digest.update(np.ascontiguousarray(numbers(t.float() if t.dtype in (dtorch.bfloat16, dtorch.float16) else t)).tobytes())

for seed in range(40):
    choice = np.random.default_rng(seed)
    mesh = init_device_mesh("cpu", MESHES[choice.integers(len(MESHES))])
    def place(a):
        return distribute_tensor(dtorch.from_numpy(a), mesh, [Shard(int(choice.integers(a.ndim))) if choice.random() < 0.6 else Replicate() for _ in range(mesh.ndim)])
    for t in run(seed, place):
        if t is not None:
            note(t)

dtorch.manual_seed(0)
base = dtorch.randn(37, 300)
for dtype in (dtorch.float32, dtorch.float64, dtorch.bfloat16, dtorch.float16):
    x, row, column = base.to(dtype), base[0].to(dtype), base[:, :1].to(dtype)
    y = ((x * 2 + row).relu() * column - x).sigmoid()
    z = dtorch.where(y > 0.5, y, -y) * 3 + y.to(dtorch.float32).to(dtype)
    a, b = z.clone(), z.T.contiguous().T
    a.add_(1).mul_(b)
    for t in (y, z, a, b, (z > 0).to(dtype) * b + x.abs().sqrt(), (x.to(dtorch.int32) // 2 * 2 + 1).to(dtype) - x):
        note(t)

def softmax(x):
    e = (x - x.amax(-1, True)).exp()
    return e / e.sum(-1, True)

def layer_norm(x, w, b):
    c = x - x.mean(-1, True)
    return c * ((c * c).mean(-1, True) + 1e-5).rsqrt() * w + b

ROWS = {  # rows reduced and spread again within a group
    "softmax": lambda x, w, b: softmax(x),
    "rms_norm": lambda x, w, b: x * (x * x).mean(-1, True).add(1e-5).rsqrt() * w,
    "layer_norm": layer_norm,
    "row values": lambda x, w, b: (x.amin(-1) * x.sum(-1)).unsqueeze(-1) - x * x.mean((-1,), True),
    "masked": lambda x, w, b: dtorch.where(x > 0, softmax(x * 2), -x).masked_fill(x > 1, 3.0) * b,
    "twice": lambda x, w, b: softmax(softmax(x) + w).relu(),
    "reshaped": lambda x, w, b: ((x * 2).reshape(-1) + 1).reshape(x.shape).sum(-1, True) * x
    + (x * 3).reshape(-1, x.shape[-1]).mean(-1).reshape(x.shape[:-1]).unsqueeze(-1),
}
for dtype in (dtorch.float32, dtorch.float64, dtorch.bfloat16, dtorch.float16):
    for shape in ((37, 300), (4, 1), (1, 50), (3, 5, 7), (2, 3, 1024), (5, 2049), (300, 8), (9, 20000), (1, 1), (0, 4), (1000, 2)):
        x0, grad = dtorch.randn(*shape).to(dtype), dtorch.randn(*shape).to(dtype)
        w0, b0 = dtorch.randn(shape[-1]).to(dtype), dtorch.randn(shape[-1]).to(dtype)
        for f in ROWS.values():
            x, w, b = (t.clone().requires_grad_() for t in (x0, w0, b0))
            y = f(x, w, b)
            y.backward(grad)
            for t in (y, x.grad, w.grad, b.grad):
                if t is not None:
                    note(t.detach())
    for shape in ((37, 300), (4, 1), (1, 50), (3, 5, 7), (2, 300, 1024), (129, 1030), (300, 8), (33, 5), (1000, 200), (0, 4), (5000, 4), (64, 9000)):
        x, grad = dtorch.randn(*shape).to(dtype), dtorch.randn(*shape).to(dtype)
        leading = tuple(range(len(shape) - 1))  # sums over columns at the end of a group
        y, s = x * grad, softmax(x)
        centred = (x - x.mean(-1, True)) * grad
        for t in (y.sum(leading), y.mean(leading, True), y.sum(-1), y, centred.sum(leading), (x * 2).mean(0) + 1, s.sum(leading) * 2 + s):
            note(t)
    for shape in ((37, 300), (3, 5, 7), (1, 2049), (0, 4), (5,)):  # dropout of full tensors and of an element per row
        x0, grad = dtorch.randn(*shape).to(dtype), dtorch.randn(*shape).to(dtype)
        x = x0.clone().requires_grad_()
        y, z = F.dropout(softmax(x * 2), 0.3) + x, (F.dropout(x.mean(-1, True) * 2, 0.5) * x).relu()
        (y * z).backward(grad)
        for t in (y, z, x.grad, x0.clone().mul_(2) + F.dropout(x0 + 1, 0.1)):
            note(t.detach())
    for where in (Shard(0), Shard(1), Replicate()):
        x = distribute_tensor(dtorch.randn(37, 30).to(dtype), init_device_mesh("cpu", (4,)), [where]).requires_grad_()
        y = F.dropout(x * 2, 0.25) + x
        y.backward(dtorch.ones_like(y))
        note(y.detach())
        note(x.grad)
    y = dtorch.randn(30, 40).to(dtype)
    total = (y * y).sum()
    for t in (total, y * (1 / (total.sqrt() + 1e-6)).clamp(max=1.0), softmax(y.T), (y.T - y.T.mean(-1, True)) * 2):
        note(t)
    for t in (softmax(y[:, 3:17]), softmax(y[::2]), (y[:1] * 1).sum(-1, True) * y):
        note(t)
    t = dtorch.randn(17, 2, 1).to(dtype).transpose(0, -1)  # its kernel sums it in another order than its dimensions'
    note(t.sum((0, 1, 2), True) * t)

mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
model = nn.Sequential(nn.Linear(24, 64), nn.GELU(), nn.LayerNorm(64), nn.Dropout(0.2), nn.Linear(64, 10))
for name, p in list(model.named_parameters()):
    owner = model[int(name.split(".")[0])]
    cut = {"tp": Shard(0)} if name == "0.weight" else {}
    owner.register_parameter(name.split(".")[1], nn.Parameter(distribute_tensor(p.detach(), mesh, cut)))
optimizer = dtorch.optim.AdamW(model.parameters(), lr=0.01)
for step in range(6):
    x = distribute_tensor(dtorch.randn(16, 24), mesh, {"dp": Shard(0)})
    loss = F.cross_entropy(model(x), dtorch.arange(16) % 10)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    note(loss.detach())
for p in model.parameters():
    note(p.detach())
print(digest.hexdigest())
"""

VARIANTS = [
    {"DTORCH_OFF": "fuse"}, {"DTORCH_OFF": "cse"}, {"DTORCH_OFF": "dead"}, {"DTORCH_OFF": "reuse"}, {"DTORCH_OFF": "overlap"}, {"DTORCH_OFF": "cache"}, {"DTORCH_OFF": "bucket"}, {"DTORCH_OFF": "many"}, {"DTORCH_OFF": "replay"},
    {"DTORCH_OFF": "dead,cse,bucket,fuse,reuse,overlap,cache", "DTORCH_FLUSH": "1"}, {"DTORCH_FLUSH": "3"}, {"DTORCH_FLUSH": "20"},
    {"DTORCH_EVICT": "1"}, {"DTORCH_EVICT": "3", "DTORCH_FLUSH": "10"},
]  # fmt: skip


def digest(env):
    here = os.path.dirname(__file__)
    out = subprocess.run(
        [sys.executable, "-c", f"__file__ = {os.path.join(here, 'test_passes.py')!r}\n" + PROGRAM],
        env={k: v for k, v in os.environ.items() if k not in ("DTORCH_OFF", "DTORCH_FLUSH", "DTORCH_EVICT")} | env,
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert out.returncode == 0, out.stderr[-2000:]
    return out.stdout.strip()


@pytest.fixture(scope="module")
def usual():
    return digest({})


@pytest.mark.parametrize("env", VARIANTS, ids=lambda e: ",".join(e.values()))
def test_no_pass_changes_a_bit(usual, env):
    assert digest(env) == usual


def groups(first, last, off):
    program = os.path.join(os.path.dirname(__file__), "random_groups.py")
    out = subprocess.run(
        [sys.executable, program, str(first), str(last)],
        env=os.environ | {"DTORCH_OFF": off},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert out.returncode == 0, out.stderr[-2000:]
    return dict(line.split(" ", 1) for line in out.stdout.splitlines())


@pytest.mark.parametrize("first", [0, 100])
def test_random_groups_change_no_bit(first):
    fused, alone = groups(first, first + 100, ""), groups(first, first + 100, "fuse")
    assert len(fused) == 100 and [seed for seed in fused if fused[seed] != alone[seed]] == []


LOOKUPS = """
import sys
import dtorch
from dtorch.nn import functional as F

def said(t):
    try:
        return t.numpy().tobytes().hex()[:400]
    except Exception as e:
        return f"{type(e).__name__} {str(e)!r}"

dtorch.manual_seed(0)
busy = dtorch.randn(700, 700)
for dtype in (dtorch.float32, dtorch.bfloat16, dtorch.float64):
    for rows, cols, n in ((50, 64, 33), (7, 1, 100), (300, 1030, 9), (1000, 5, 700)):
        w, x, ids = dtorch.randn(rows, cols).to(dtype), dtorch.randn(n, cols).to(dtype), dtorch.randint(0, rows, (n,))
        target, few = dtorch.randint(0, cols, (n, 1)), dtorch.randint(0, cols, (n, 3))
        dtorch.synchronize()
        busy @ busy  # what follows is one subgraph
        h = F.dropout(F.embedding(ids, w) * 8 + x, 0.1)
        c = h - h.mean(-1, True)
        m = x.amax(-1, True)
        out = [h, c * dtorch.rsqrt((c * c).mean(-1, True) + 1e-5), dtorch.softmax(w[ids - rows] * 1.5, -1), w.index_select(0, ids).tanh() + 1,
               F.embedding(ids.int()[::2], w.t().contiguous().t()).exp(), x.gather(-1, few) * 2, (x - m).exp().sum(-1, True).log() + m - x.gather(-1, target)]
        for t in out:
            print(said(t.float()))
wrong = dtorch.tensor([0, 3, 1])
w, x = dtorch.randn(3, 4), dtorch.randn(3, 4)
dtorch.synchronize()
busy @ busy
a = x * 2
y = F.embedding(wrong, w) * 2 + a
z = x.gather(-1, dtorch.tensor([[1], [4], [0]])) + a
for t in (a + 1, y, z, F.embedding(wrong, w), w[wrong - 4] * 2 + a, w[wrong - 3] * 2 + a):
    print(said(t))
"""


def test_reads_by_index_join_groups(tmp_path):
    """Bits and errors are those of the operators alone, and a look-up's result reaches no memory."""
    said = []
    for off in ("cse", "cse,fuse"):  # of two equal calls the second one's error names its own line, in whichever subgraph it is
        env = os.environ | {"DTORCH_OFF": off, "DTORCH_DUMP": str(tmp_path / off), "DTORCH_VERIFY": "1"}
        env.pop("DTORCH_FLUSH", None)
        out = subprocess.run([sys.executable, "-c", LOOKUPS], env=env, capture_output=True, text=True, timeout=300, check=False)
        assert out.returncode == 0, out.stderr[-2000:]
        said.append(out.stdout.splitlines())
    assert said[0] == said[1] and len(said[0]) == 3 * 4 * 7 + 6
    errors = [line for line in said[0] if "Error" in line]
    assert "index 3, legal are 0 to 2" in errors[0] and "<string>" in errors[0] and len(errors) == 4
    text = "".join(file.read_text() for file in (tmp_path / "cse").iterdir())
    for group in ("fused(embedding, mul, add, _dropout, mean, sub", "fused(index_select, tanh", "fused(_index, mul", "fused(gather, mul)"):
        assert group in text


def test_an_unknown_pass_is_refused():
    out = subprocess.run(
        [sys.executable, "-c", "import dtorch; dtorch.ones(2)"],
        env=os.environ | {"DTORCH_OFF": "fusion"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert out.returncode == 1 and "'fusion' is not a pass" in out.stderr
