"""One table of measured times: dtorch beside PyTorch (eager and torch.compile), JAX and what the machine allows, in turns.

    python bench/run.py [--only start,calls,memory,gemm,models,distributed] [--rounds 3] [--peers PYTHON] [--write FILE] [--json FILE]

Every framework runs in a process of its own; of each case all take their turn, `rounds` times, and medians are shown. `limit`: bytes moved over the
memory's bandwidth, operations over the speed of a long matrix product, what a loop in Python takes, the largest; `of limit` is dtorch's time over it.
`ratio`: dtorch's time over the best other's, below one dtorch is faster. Targets: docs say where they come from; `x` behind one means a ratio. --peers
names the Python that has PyTorch and JAX, by default this one. --write makes a Markdown page, as bench/RESULTS.md.
"""

import argparse
import dataclasses
import datetime
import json
import os
import pathlib
import platform
import re
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).parent
FRAMEWORKS = ("dtorch", "torch", "compile", "jax")
TITLES = {"dtorch": "dtorch", "torch": "PyTorch", "compile": "compile", "jax": "JAX"}
SMALL, MEDIUM = "2 64 4 64 4 512", "4 256 8 128 8 4096"
EAGER = ("dtorch", "torch")


@dataclasses.dataclass
class Program:
    """One file: `cases` of common.py, `lines` of JSON a result, or `text` shown as it is."""

    group: str
    file: str
    kind: str = "cases"
    frameworks: tuple = FRAMEWORKS
    args: tuple = ()
    env: dict = dataclasses.field(default_factory=dict)
    threads: int = 1
    only: str = ""  # a regular expression that a case's name must match
    about: str = ""  # of a text


# or a call whose result nobody reads, and one equal to an earlier one, would cost nothing
EVERY_CALL = {"DTORCH_OFF": "dead,cse"}
PROGRAMS = [
    Program("start", "start.py", "lines", ("dtorch", "torch", "jax")),
    Program("calls", "calls.py", frameworks=("dtorch", "torch", "jax")),
    Program("memory", "kernels.py", env=EVERY_CALL, only="^(?!matmul|attention|conv)"),
    Program("gemm", "kernels.py", env=EVERY_CALL, only="^(matmul|attention|conv)"),
    Program("gemm", "gemm.py", frameworks=EAGER, env=EVERY_CALL, only="^(float32|bfloat16) (linear|bmm)"),
    Program("gemm", "conv.py", frameworks=EAGER, env=EVERY_CALL, only="grad$"),
    Program("models", "train.py", "lines", args=(*SMALL.split(), "1")),
    Program("models", "train.py", "lines", args=(*MEDIUM.split(), "2"), threads=2),
    Program("models", "lstm.py", frameworks=EAGER),
    Program("models", "lstm.py", frameworks=EAGER, env={"THREADS": "2", "HIDDEN": "650"}, threads=2, only="threads$"),
    Program("models", "resnet.py", frameworks=EAGER),
    Program("models", "mlp.py"),
    Program("distributed", "dist.py", "dist", EAGER),
    Program("distributed", "allreduce.py", "allreduce", ("dtorch",)),
    Program("distributed", "train.py", "lines", ("dtorch",), (*MEDIUM.split(), "2", "dp"), threads=2),
    Program("distributed", "train.py", "lines", ("dtorch",), (*MEDIUM.split(), "2", "tp"), threads=2),
    Program("more", "zero.py", "text", about="What a step of data parallelism with sharded state sends and holds"),
    Program("more", "replay.py", "text", about="Repeated steps"),
    Program("more", "fusion.py", "text", about="Fused groups"),
    Program("more", "memory.py", "text", about="Memory"),
    Program("more", "simulate.py", "text", args=("llama",), about="70 B parameters on 1,024 simulated devices"),
]

# (name of a row, in full, the largest value or ratio): of dtorch's value, or of its ratio to the best other or to another row of its own
TARGETS = [
    ("import", "value", 200),
    ("installed size with dependencies", "value", 120),
    ("add, one element", "value", 0.2),
    ("add, one element, recorded for gradients", "value", 0.35),
    ("add, one element, done", "value", 0.3),  # each depends on the last, and they repeat
    ("add, Shard(0) on 8 devices", "add, one element", 1.1),
    ("nn.Linear(8, 8) module", "value", 1),
    ("SGD.step() of 1000 parameters", "value", 1000),
    ("AdamW.step() of 1000 parameters", "value", 1000),
    ("chain of 10000 adds, one element, then its value: an add", "value", 1),
    ("seven element-wise ops, 8 M", "value", 25),
    *((f"{n} 4096 x 1024", "torch", 1) for n in ("softmax", "layer_norm", "gelu", "gelu tanh", "cross_entropy")),
    ("attention, causal 8 x 8 x 512 x 64", "torch", 0.5),
    ("matmul 1024 x 1024", "value", 2 * 1024**3 / 90e9 * 1e3),
    (r"GPT 0.1. M, 1 threads, plain: step", "torch", 0.5),
    (r"GPT 4.2. M, 2 threads, plain: step", "torch", 0.72),
    (r"GPT 4.2. M, 2 threads, plain: step", "compile", 0.75),
    (r"GPT 4.2. M, 2 threads, plain: first step from process start", "value", 1000),
    (r"GPT 4.2. M, 2 threads, plain: largest memory", "value", 250),
    (r"LSTM language model, 2 x \d+, \d threads?", "torch", 0.7),
    ("ResNet-18, batch 64, training step", "torch", 0.9),
    ("MLP 784-256-256-10, batch 1, to numpy", "torch", 0.2),
    ("GPT 5.3 M, 2 devices: dp", "torch", 0.75),
    ("GPT 5.3 M, 2 devices: zero3", "torch", 0.65),
    ("GPT 5.3 M, 2 devices: tp", "torch", 0.55),
    ("GPT 5.3 M, 2 ranks: (dp|zero3)", "torch", 0.85),
    ("all-reduce of 64 MiB, 2 ranks (limit: MPI_Allreduce)", "limit", 1.25),
]


# ---- running -------------------------------------------------------------------------------------------------------------------------


class Peers:
    """Which frameworks can run, and the interpreter of each."""

    def __init__(self, python):
        self.python = {f: sys.executable if f == "dtorch" else python for f in FRAMEWORKS}
        self.have = [f for f in FRAMEWORKS if self.works(f)]

    def works(self, framework):
        module = "torch" if framework == "compile" else framework
        code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
        return subprocess.run([self.python[framework], "-c", code], capture_output=True).returncode == 0


def environment(program, framework):
    fixed = {"FRAMEWORK": framework, "OMP_NUM_THREADS": str(program.threads), "OPENBLAS_NUM_THREADS": str(program.threads)}
    return os.environ | fixed | program.env | {"BENCH_STARTED": repr(time.time())}


class Child:
    """A process that runs the cases of one program under one framework."""

    def __init__(self, peers, program, framework):
        command = [peers.python[framework], HERE / program.file, *program.args]
        env = environment(program, framework) | {"BENCH_CHILD": "1"}
        self.errors = open(os.devnull if os.environ.get("BENCH_QUIET") else "/dev/stderr", "w")  # noqa: SIM115
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True, env=env)

    def ask(self, line):
        """None once the process has failed."""
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return None
        answer = self.process.stdout.readline()
        return json.loads(answer) if answer else None

    def close(self):
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        self.process.wait()
        self.process.stdout.close()
        self.errors.close()


SCALE = {"us": 1e6, "ms": 1e3, "s": 1.0}


def run_cases(peers, program, rounds, speeds):
    """Yields rows of a program of cases: {"name", "unit", "limit", framework: value}."""
    children = {f: Child(peers, program, f) for f in program.frameworks if f in peers.have}
    lists = {f: c.ask("?") or {} for f, c in children.items()}
    bandwidth, speed = speeds
    for name in dict.fromkeys(n for cases in lists.values() for n in cases):
        if not re.search(program.only, name):
            continue
        taken = {f: [] for f in children if name in lists[f]}
        for _ in range(rounds):
            for f, times in taken.items():
                answer = children[f].ask(name)
                times += [answer] if answer else []
        about = next(cases[name] for cases in lists.values() if name in cases)
        unit = about["unit"]
        limit = max(about["moved"] / bandwidth / about["per"], about["operations"] / speed / about["per"], about["least"]) * SCALE[unit]
        limit = limit if limit > 1e-3 else None  # of a few bytes the limit is the call, not the machine
        medians = {f: [statistics.median(t[i] for t in times) * SCALE[unit] for i in range(3)] for f, times in taken.items() if times}
        if about["client"]:
            yield {"name": name, "unit": unit, "limit": limit, **{f: m[2] for f, m in medians.items()}}
        done = ", done" if about["client"] else ""
        yield {"name": name + done, "unit": unit, "limit": limit, **{f: m[0] for f, m in medians.items()}}
        busy = {f: m[1] for f, m in medians.items()}
        if unit == "ms" and max(busy.values(), default=0) > 50:
            yield {"name": name + done + ": processor time", "unit": unit, "limit": None, **busy}
    for child in children.values():
        child.close()


def lines_of(peers, program, framework):
    """The results that one run of a program prints; one that fails says why and gives none."""
    file = "train_jax.py" if framework == "jax" and program.file == "train.py" else program.file
    env = environment(program, framework)
    run = subprocess.run([peers.python[framework], HERE / file, *program.args], capture_output=True, text=True, env=env, timeout=900)
    if run.returncode:
        print(f"{file} {' '.join(program.args)} failed with {framework}:\n{run.stderr[-2000:]}", file=sys.stderr)
    return [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]


def run_lines(peers, program, rounds, speeds):
    """Yields rows of a program that prints its results."""
    values, about = {}, {}
    frameworks = [f for f in program.frameworks if f in peers.have]
    for _ in range(rounds):
        for f in frameworks:
            for line in lines_of(peers, program, f):
                about.setdefault(line["name"], line)
                values.setdefault(line["name"], {}).setdefault(f, []).append(line["value"])
    for name, by_framework in values.items():
        medians = {f: statistics.median(v) for f, v in by_framework.items()}
        yield {"name": name, "unit": about[name]["unit"], "limit": about[name]["limit"], **medians}


def run_dist(peers, program, rounds, speeds):
    """Yields rows of dist.py, which takes turns by itself: dtorch as one process and as two ranks, in turns with the same runs of PyTorch."""
    import dist

    for mode in ("dp", "zero3", "tp"):
        got = {f: [] for f in program.frameworks if f in peers.have}
        if dist.launcher() and mode != "tp":
            got["ranks"] = []
        for _ in range(rounds):
            for f in got:
                value = dist.measure("dtorch", mode, 12, ranks=True) if f == "ranks" else dist.measure(f, mode, 12, peers.python[f])
                got[f] += [value] if value else []
        for where, ours in (("devices", "dtorch"), ("ranks", "ranks")):
            for i, what in enumerate(("", ", processor time")):
                row = {k: statistics.median(v[i] for v in got[f]) for k, f in (("dtorch", ours), ("torch", "torch")) if got.get(f)}
                if "dtorch" in row:
                    yield {"name": f"GPT 5.3 M, 2 {where}: {mode}{what}", "unit": "ms", "limit": None, **row}


def run_allreduce(peers, program, rounds, speeds):
    """Yields the row of allreduce.py: MPI's own time is what the machine allows."""
    import allreduce

    if not allreduce.launcher():
        return
    got = allreduce.turns(rounds)
    row = {"dtorch": got["ours"][0], "limit": got["theirs"][0]}
    yield {"name": "all-reduce of 64 MiB, 2 ranks (limit: MPI_Allreduce)", "unit": "ms", **row}


RUNS = {"cases": run_cases, "lines": run_lines, "dist": run_dist, "allreduce": run_allreduce}


def speeds_of(threads, cache={}):  # noqa: B006
    """Bytes a second of one thread, operations a second of `threads`: measured once, in a process of their own."""
    if threads not in cache:
        code = f"import sys; sys.path.insert(0, {str(HERE)!r})\n"
        code += "from common import memory_bandwidth as b, multiply_speed as m; print(b(), max(m() for _ in range(5)))"
        env = os.environ | {"OPENBLAS_NUM_THREADS": str(threads), "FRAMEWORK": "dtorch"}
        out = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout
        cache[threads] = tuple(map(float, out.split()))
    return cache[threads]


# ---- the table -----------------------------------------------------------------------------------------------------------------------


def number(value):
    """Three significant digits, never with an exponent."""
    return "" if value is None else f"{value:.0f}" if value >= 100 else f"{value:#.3g}" if value >= 1e-3 else f"{value:.5f}"


def header():
    names = "".join(f"{TITLES[f]:>9}" for f in FRAMEWORKS)
    return f"{'':<72}{'':>3}{names}{'limit':>9}{'of limit':>9}{'ratio':>7}  target"


def judged(row, rows):
    """The row's targets, each with what became of it: [("0.72x PyTorch", True), …]."""
    found = []
    for pattern, kind, most in TARGETS:
        if "dtorch" not in row or not (pattern == row["name"] or re.fullmatch(pattern, row["name"])):
            continue
        if kind == "value":
            found.append((number(most), row["dtorch"] <= most))
        elif kind in FRAMEWORKS or kind == "limit":
            if row.get(kind):
                found.append((f"{most:g}x {TITLES.get(kind, kind)}", row["dtorch"] <= most * row[kind]))
        else:
            base = next((r["dtorch"] for r in rows if r["name"] == kind and "dtorch" in r), None)
            if base is not None:
                found.append((f"{most:g}x {kind}", row["dtorch"] <= most * base))
    return found


def text_of(row, rows):
    """One line of the table."""
    ours, others = row.get("dtorch"), [row[f] for f in FRAMEWORKS[1:] if f in row]
    cells = "".join(f"{number(row.get(f)):>9}" for f in FRAMEWORKS)
    of_limit = f"{ours / row['limit']:.2f}" if ours and row["limit"] else ""
    ratio = f"{ours / min(others):.2f}" if ours and others and min(others) else ""
    targets = ", ".join(f"{text} {'✓' if met else '✗'}" for text, met in judged(row, rows))
    return f"{row['name']:<72}{row['unit']:>3}{cells}{number(row['limit']):>9}{of_limit:>9}{ratio:>7}  {targets}".rstrip()


def machine():
    """What ran it: processor, instruction set, versions."""
    try:
        info = pathlib.Path("/proc/cpuinfo").read_text()
        model = re.search(r"model name\s*: (.*)", info).group(1)
    except (OSError, AttributeError):
        info, model = "", platform.machine()
    flags = set(re.search(r"flags\s*: (.*)", info).group(1).split()) if "flags" in info else set()
    best = "avx512" if {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= flags else "avx2" if {"avx2", "fma"} <= flags else "base"
    isa = os.environ.get("DTORCH_CPU_ISA", best)
    return f"{model}, {len(os.sched_getaffinity(0))} cores, instruction set {isa}, Python {platform.python_version()}"


def versions(peers):
    found = []
    for f in ("dtorch", "torch", "jax"):
        if f in peers.have:
            code = f"from importlib.metadata import version; print(version({f!r}))"
            out = subprocess.run([peers.python[f], "-c", code], capture_output=True, text=True).stdout.strip()
            found.append(f"{TITLES[f]} {out}" if out else TITLES[f])
    return ", ".join(found)


INTRO = """# Results
What `make bench` wrote: {date} UTC, {machine}; {versions}. Load of the machine when it began: {load}.

Medians of {rounds} rounds in which the frameworks take turns; in each turn a case first runs untimed, since the others' turns left it cold. `limit` is
what the machine allows: bytes moved over the memory's bandwidth ({bandwidth:.1f} GB/s, one thread), operations over the speed of a long matrix
product ({speed:.0f} GFLOP/s a thread), or, of calls, what a loop over additions of Python's own numbers takes. `of limit` is DTorch's time over
it, `ratio` DTorch's time over the best other's; below one DTorch is faster. `compile` is torch.compile. A target is the largest value, or with `x` the
largest multiple of the other's time, that the design promises; ✓ says that this run kept it. Lines with "done" wait until the last value is
there, the same lines without it are the calling thread's time alone: DTorch's calls do not wait. Processor time sums over all threads.
"""
ABOUT = {
    "start": ("Start", "Import in a fresh process, and what is installed."),
    "calls": ("Call-bound", "Tensors of one element or 8 x 8: what a call costs, and how cost grows with calls, parameters and devices."),
    "memory": ("Memory-bound", "One thread, float32; sizes from one element to 16 M."),
    "gemm": ("GEMM-bound", "One thread, float32."),
    "models": (
        "Models",
        "Whole steps. A GPT (AdamW), the LSTM language model (SGD), ResNet-18 on images of 32 x 32, an MLP answering one row.",
    ),
    "distributed": ("Distributed", "Two devices of one thread each, or two ranks of one thread under mpiexec; PyTorch under torchrun with gloo."),
    "more": ("Further programs", "What these print is explained in the programs themselves."),
}


def page(head, sections, rows):
    """The file that --write makes: first the rows that have a target, then all, group by group."""
    aimed = [text_of(row, rows) for row in rows if judged(row, rows)]
    text = [head]
    if aimed:
        met = sum("✗" not in line for line in aimed)
        about = f"The rows below that the design gives a target, {met} of {len(aimed)} met in this run."
        text.append(f"\n## Targets\n{about}\n\n```\n" + "\n".join([header(), *aimed]) + "\n```\n")
    for group, lines in sections.items():
        title, about = ABOUT[group]
        text.append(f"\n## {title}\n{about}\n\n```\n" + "\n".join(lines) + "\n```\n")
    return "".join(text)


def shown(group, lines, sections):
    for line in lines:
        print(line, flush=True)
        sections.setdefault(group, []).append(line)


def run_text(peers, program):
    command = [sys.executable, HERE / program.file, *program.args]
    run = subprocess.run(command, capture_output=True, text=True, env=environment(program, "dtorch"), timeout=900)
    if run.returncode:
        print(f"{program.file} {' '.join(program.args)} failed:\n{run.stderr[-2000:]}", file=sys.stderr)
    return [f"{program.about} ({' '.join([program.file, *program.args])})", *run.stdout.rstrip().splitlines(), ""]


def tables(peers, programs, rounds):
    """Runs programs and prints; ({group: lines}, all rows)."""
    sections, everything = {}, []
    for program in programs:
        if not (HERE / program.file).exists():
            continue
        if program.kind == "text":
            shown(program.group, run_text(peers, program), sections)
            continue
        if program.group not in sections:
            shown(program.group, [header()], sections)
        for row in RUNS[program.kind](peers, program, rounds, speeds_of(program.threads)):
            everything.append(row)
            shown(program.group, [text_of(row, everything)], sections)
    return sections, everything


def alone(file):
    """The part of the table that one program of cases makes."""
    name = pathlib.Path(file).name
    rounds = int(os.environ.get("ROUNDS", "3"))
    programs = [p for p in PROGRAMS if p.file == name] or [Program("more", name)]
    programs = [
        dataclasses.replace(programs[0], env=programs[0].env | {k: v for k, v in os.environ.items() if k in ("THREADS", "HIDDEN")}, only="")
    ]
    programs[0].threads = int(os.environ.get("THREADS", programs[0].threads))
    tables(Peers(sys.executable), programs, rounds)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(ABOUT), help="groups, comma-separated")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", default=sys.executable, help="the Python that has PyTorch and JAX")
    parser.add_argument("--write", type=pathlib.Path)
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    unknown = set(args.only.split(",")) - set(ABOUT)
    if unknown:
        parser.error(f"unknown groups {', '.join(sorted(unknown))}; there are {', '.join(ABOUT)}")
    peers = Peers(args.peers)
    bandwidth, speed = speeds_of(1)
    head = INTRO.format(
        date=datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M"), machine=machine(), versions=versions(peers),
        rounds=args.rounds, bandwidth=bandwidth / 1e9, speed=speed / 1e9, load=f"{os.getloadavg()[0]:.1f}",
    )  # fmt: skip
    print(head)
    sections, rows = tables(peers, [p for p in PROGRAMS if p.group in args.only.split(",")], args.rounds)
    if args.write:
        args.write.write_text(page(head, sections, rows))
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
