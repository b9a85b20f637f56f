"""Run clang-tidy over our C files, several at a time: tidy.py BUILD_DIR JOBS. Checks and limits stand in .clang-tidy.

Kernels are compiled once per instruction set and looked at once. Files clang cannot read for reasons of its own are errors too.
"""

import concurrent.futures
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def units(build: pathlib.Path) -> list[str]:
    """Every C file of the repository that the build compiles, each once."""
    seen = set()
    for entry in json.loads((build / "compile_commands.json").read_text()):
        path = (pathlib.Path(entry["directory"]) / entry["file"]).resolve()
        if path.is_relative_to(ROOT / "src") or path.is_relative_to(ROOT / "tests"):
            seen.add(str(path))
    return sorted(seen)


def check(build: pathlib.Path, file: str) -> str:
    """The findings in one file, empty when there are none."""
    command = ["clang-tidy", "-p", str(build), "--quiet", "--extra-arg=-Wno-unknown-warning-option", "--extra-arg=-Wno-error", file]
    run = subprocess.run(command, capture_output=True, text=True)
    findings = [line for line in run.stdout.splitlines() if line.strip()]
    if run.returncode and not findings:
        return run.stderr
    return "\n".join(findings)


def main() -> None:
    build, jobs = pathlib.Path(sys.argv[1]), int(sys.argv[2])
    files = units(build)
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        results = [r for r in pool.map(lambda f: check(build, f), files) if r]
    print("\n".join(results) if results else f"{len(files)} files, nothing found")
    sys.exit(bool(results))


main()
