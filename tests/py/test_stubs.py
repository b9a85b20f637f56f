"""The generated stubs and pages are current, and a type checker finds wrong programs with them."""

import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def tool(name):
    return subprocess.run([sys.executable, ROOT / "tools" / name, "--check"], capture_output=True, text=True, timeout=100)


@pytest.mark.parametrize("name", ["gen_stubs.py", "gen_docs.py"])
def test_generated_files_are_current(name):
    done = tool(name)
    assert done.returncode == 0, done.stderr


def test_sample_program_runs():
    done = subprocess.run([sys.executable, ROOT / "tests/typing/sample.py"], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert "tensor([3., 4., 5., 6., 7., 8.])" in done.stdout


@pytest.mark.parametrize(
    "line, fault",
    [
        ("torch.softmax(x, 'rows')", "arg-type|call-overload"),
        ("x.view(2, 3).no_such_method()", "attr-defined"),
        ("n: int = x.sum()", "assignment"),
        ("torch.Shard('dp')", "arg-type"),
        ("torch.nothing_like_this(x)", "attr-defined"),
        ("torch.nn.functional.relu(3, x, x)", "arg-type|call-arg|call-overload"),
    ],
)
def test_type_checker_finds_the_fault(line, fault, tmp_path):
    pytest.importorskip("mypy", reason="mypy comes with the extra 'lint'")
    (tmp_path / "wrong.py").write_text(f"import dtorch as torch\nx: torch.Tensor = torch.ones(6)\n{line}\n")
    command = [sys.executable, "-m", "mypy", "--no-incremental", "--follow-imports=silent", tmp_path / "wrong.py"]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, env=os.environ | {"MYPYPATH": str(ROOT / "python")}, timeout=110
    )
    assert done.returncode == 1, done.stdout
    assert "wrong.py:3" in done.stdout and any(f"[{f}]" in done.stdout for f in fault.split("|")), done.stdout
