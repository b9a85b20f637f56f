"""The programs that the project shows run, and do what they say."""

import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def run(*args, timeout=300):
    done = subprocess.run([sys.executable, *map(str, args)], capture_output=True, text=True, timeout=timeout, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(320)
def test_digits_reads_97_percent():
    share = re.search(r"([\d.]+)% of 360 held-out images", run("examples/digits.py"))
    assert float(share.group(1)) >= 97


@pytest.mark.slow
@pytest.mark.timeout(320)
def test_demo_writes_its_files_and_one_device_agrees(tmp_path):
    out = run("examples/demo.py", "--steps", 25, "--out", tmp_path)
    assert float(re.search(r"largest difference of the losses (\S+)", out).group(1)) <= 1e-4
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "sample.txt").read_text().startswith("def read_lines(path):")
    assert (tmp_path / "model.safetensors").stat().st_size > 4_000_000  # a million parameters in float32


def test_readme_program_runs(tmp_path):
    program = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S).group(1)
    (tmp_path / "readme.py").write_text(program)
    assert "Size([128, 64])" in run(tmp_path / "readme.py")


@pytest.mark.slow
@pytest.mark.timeout(320)
@pytest.mark.parametrize(
    "args",
    [
        "--model llama --dp 2 --tp 2 --cp 2 --zero 3",
        "--model moe --pp 2 --tp 2 --ep 2 --sequence-parallel --micro-batches 2",
        "--model resnet --dp 8 --steps 40",
    ],
)
def test_train_mixes_and_one_device_agrees(args):
    out = run("examples/train.py", *args.split(), *([] if "--steps" in args else ["--steps", 15]), "--compare")
    assert float(re.search(r"largest difference of the losses (\S+)", out).group(1)) <= 1e-4
    if "resnet" in args:
        assert float(re.search(r"([\d.]+)% of the held-out digits", out).group(1)) >= 60
    else:
        assert "def read_lines(path):" in out


@pytest.mark.slow
@pytest.mark.timeout(320)
def test_train_goes_on_from_a_checkpoint_of_another_mesh(tmp_path):
    args = ["--model", "gpt2", "--batch", 4, "--context", 16, "--save-every", 5, "--steps", 10]
    last = re.compile(r"loss (\S+) in the last steps, (\S+) on what was held out")
    whole = last.search(run("examples/train.py", *args, "--dp", 2, "--checkpoint", tmp_path / "a"))
    (tmp_path / "a" / "step-000010").rename(tmp_path / "aside")
    out = run("examples/train.py", *args, "--dp", 2, "--tp", 2, "--zero", 1, "--checkpoint", tmp_path / "a", "--resume")
    assert "resumed after step 5" in out
    assert abs(float(last.search(out).group(2)) - float(whole.group(2))) < 1e-3
