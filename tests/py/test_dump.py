"""What DTORCH_DUMP writes, and that checking the passes finds nothing wrong in a training step."""

import html.parser
import os
import re
import subprocess
import sys

import pytest

PROGRAM = """
import dtorch
import dtorch.nn.functional as F
from dtorch import nn, Shard, distribute_tensor, init_device_mesh

model = nn.Sequential(nn.Linear(64, 256), nn.GELU(approximate="tanh"), nn.Linear(256, 10))
optimizer = dtorch.optim.SGD(model.parameters(), lr=0.1)
x, y = dtorch.randn(32, 64), dtorch.randint(0, 10, (32,))
for _ in range(2):
    optimizer.zero_grad()
    F.cross_entropy(model(x) * 2 + 1, y).backward()
    optimizer.step()
    dtorch.synchronize()  # a subgraph ends here, however busy the machine is
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
z = distribute_tensor(dtorch.randn(500, 300), mesh, {"a": Shard(0), "b": Shard(1)})
print(model[0].weight.sum().item(), ((z @ z.T).relu() + z.sum()).full_tensor().sum().item())
"""


def run(env, program=PROGRAM):
    env = {k: v for k, v in os.environ.items() if not k.startswith("DTORCH_")} | env | {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def dumps(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dump") / "made"
    done = run({"DTORCH_DUMP": str(folder), "DTORCH_DUMP_FORMAT": "text,dot,html", "DTORCH_VERIFY": "1"})
    assert done.returncode == 0, done.stderr
    assert done.stdout == run({}).stdout
    return folder


def of_kind(folder, suffix):
    files = sorted(folder.glob(f"*.{suffix}"))
    assert [f.stem for f in files] == [f"subgraph-{i:05d}" for i in range(len(files))] and len(files) > 3
    return [f.read_text() for f in files]


def test_text(dumps):
    texts = of_kind(dumps, "txt")
    for t in texts:
        assert re.findall(r"^== (.*) ==$", t, re.M) == [
            "as recorded; dead calls are marked", "after lower", "after bucket", "after fuse", "after reuse", "after many", "the plan",
        ]  # fmt: skip
        calls = int(re.match(r"subgraph \d+: (\d+) calls", t)[1])
        assert len(re.findall(r"^%\d+( \(dead\))? = ", t, re.M)) == calls
        arena = [int(a) for a in re.findall(r"^  arena (\d+) bytes", t, re.M)]
        assert len(arena) == len(set(re.findall(r"^program of (\S+)", t, re.M)))
        for offset, size in re.findall(r"^    temp\d+@(\d+) +(\d+) bytes", t, re.M):
            assert int(offset) + int(size) <= max(arena)
    whole = "\n".join(texts)
    assert "fused(" in whole and re.search(r"in\d+!.* donated: overwritten", whole) and "sgd_update" in whole
    assert re.search(r"all_gather|all_reduce|reduce_scatter", whole) and "float32 (500, 300)" in whole and "<string>:" in whole


def test_dot(dumps):
    for t in of_kind(dumps, "dot"):
        assert t.startswith("digraph plan {") and t.count("{") == t.count("}")
        nodes = set(re.findall(r"^ +(p\d+_(?:slot)?\d+) \[", t, re.M))
        for a, b in re.findall(r"^ +(\S+) -> (\S+) \[", t, re.M):
            assert a in nodes and b in nodes


class Page(html.parser.HTMLParser):
    VOID = {"meta", "input", "br"}

    def __init__(self):
        super().__init__()
        self.open, self.count, self.links = [], {}, []

    def handle_starttag(self, tag, attrs):
        self.count[tag] = self.count.get(tag, 0) + 1
        self.links += [v for k, v in attrs if k in ("src", "href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_pages(dumps):
    for text, t in zip(of_kind(dumps, "txt"), of_kind(dumps, "html"), strict=True):
        page = Page()
        page.feed(t)
        assert not page.open and not page.links and "http" not in t
        plan = text.split("== the plan ==")[1]
        assert page.count["tr"] == 1 + len(re.findall(r"^ +\d+  (compute|comm) ", plan, re.M))
        assert page.count["svg"] >= 1


def test_formats_and_folders(tmp_path):
    done = run({"DTORCH_DUMP": str(tmp_path)}, "import dtorch; print((dtorch.ones(3) + 1).sum().item())")
    assert done.stdout.split() == ["6.0"] and {f.suffix for f in tmp_path.iterdir()} == {".txt"}
    done = run({"DTORCH_DUMP": str(tmp_path), "DTORCH_DUMP_FORMAT": "svg"}, "import dtorch; dtorch.ones(3)")
    assert "DTORCH_DUMP_FORMAT: 'svg' is not legal: text, dot and html are" in done.stderr
    done = run({"DTORCH_DUMP": str(tmp_path / "a" / "b")}, "import dtorch; dtorch.ones(3)")
    assert "is not a folder that can be written to" in done.stderr


def test_shapes_and_unused_results_cost_nothing(tmp_path):
    """Asking for shapes, and computing what nobody reads, makes no instruction."""
    program = """
import dtorch
x = dtorch.ones(64, 64)
x.sum().item()
dtorch.set_memory_budget(1 << 40)  # then nothing is dispatched because the client happens to pause
for _ in range(5):  # fewer calls than make a subgraph of their own, here and below
    n = x.T.reshape(-1, 8).unsqueeze(0).shape.numel() + x.numel() + x[3:, :5].size(0) + (x @ x).exp().stride(0)
y = (x * n).T.reshape(8, 512)[2:3]
y.sum().item()
before = dtorch._C._engine_stats()
for _ in range(12):
    z = (x @ x).exp().softmax(-1)
del z
x.sum().item()
dtorch.synchronize()
after = dtorch._C._engine_stats()
print(after["nodes_dead"] - before["nodes_dead"], after["programs_run"] - before["programs_run"])
"""
    done = run({"DTORCH_DUMP": str(tmp_path)}, program)
    assert done.returncode == 0, done.stderr
    dead, programs = map(int, done.stdout.split())
    assert (dead, programs) == (36, 1)
    plans = "\n".join(f.read_text().split("== the plan ==")[1] for f in tmp_path.glob("*.txt"))
    assert "matmul" not in plans and "exp " not in plans and "softmax" not in plans
