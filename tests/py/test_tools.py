"""The tools that keep the house in order find what they are there to find."""

import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def layers(tmp_path, files):
    for name, text in files.items():
        path = tmp_path / "src" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    run = subprocess.run([sys.executable, ROOT / "tools/check_layers.py", tmp_path], capture_output=True, text=True)
    return run.returncode, run.stdout


HEADERS = {f"{folder}/x.h": "" for folder in ("base", "tensor", "ops", "graph", "client", "plan", "passes", "controller", "worker")}


def test_layers_pass_when_every_include_goes_down(tmp_path):
    files = HEADERS | {"client/a.c": '#include "base/x.h"\n#include "ops/x.h"\n#include <stdio.h>\n', "passes/a.c": '#include "plan/x.h"\n'}
    assert layers(tmp_path, files)[0] == 0


@pytest.mark.parametrize(
    "file, include",
    [("base/a.c", "tensor/x.h"), ("tensor/a.c", "ops/x.h"), ("plan/a.h", "passes/x.h"), ("worker/a.c", "graph/x.h"),
     ("worker/a.c", "controller/x.h"), ("passes/a.c", "client/x.h"), ("controller/a.c", "client/x.h"), ("ops/a.c", "plan/x.h"),
     ("plan/a.c", "controller/x.h")],
)  # fmt: skip
def test_layers_find_an_include_that_goes_up(tmp_path, file, include):
    code, out = layers(tmp_path, HEADERS | {file: f'/* essay */\n#include "{include}"\n'})
    assert code == 1
    assert f"src/{file}:2: {file.split('/')[0]} must not include {include.split('/')[0]}" in out


def test_layers_want_includes_relative_to_src(tmp_path):
    code, out = layers(tmp_path, HEADERS | {"base/a.c": '#include "x.h"\n', "base/b.c": '#include "base/none.h"\n'})
    assert code == 1
    assert "not written relative to src" in out and "does not exist" in out


def test_layers_know_every_folder_of_this_tree():
    run = subprocess.run([sys.executable, ROOT / "tools/check_layers.py"], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout


def test_extras_lists_an_extra_and_refuses_an_unknown_one():
    run = subprocess.run([sys.executable, "tools/extras.py", "test"], capture_output=True, text=True, cwd=ROOT)
    assert any(line.startswith("pytest>=") for line in run.stdout.splitlines())
    run = subprocess.run([sys.executable, "tools/extras.py", "nonsense"], capture_output=True, text=True, cwd=ROOT)
    assert run.returncode != 0 and "nonsense" in run.stderr


def test_list_files_groups_every_source():
    run = subprocess.run([sys.executable, ROOT / "tools/list_files.py"], capture_output=True, text=True, check=True)
    listed = dict.fromkeys(line.split(" ")[1] for line in run.stdout.splitlines())
    for file in (ROOT / "src").rglob("*.c"):
        assert file.relative_to(ROOT).as_posix() in listed
