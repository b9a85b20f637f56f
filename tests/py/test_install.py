"""What is installed: the wheel's files, and for C programs headers, library and dtorch.pc that a program can be built with.

The build folder is DTORCH_BUILD, or build/wheel as `make install` makes it, or build.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import zipfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = [pathlib.Path(os.environ["DTORCH_BUILD"])] if "DTORCH_BUILD" in os.environ else [ROOT / "build/wheel", ROOT / "build"]
BUILD = next((f for f in FOLDERS if (f / "build.ninja").exists()), None)

PROGRAM = """
#include <dtorch.h>
#include <dtorch_ops.h>
#include <stdio.h>
int main(void) {
    dt_scope *s = dt_scope_new();
    float x[] = {1, 2, 3};
    dt_tensor *t = dt_from_host(s, x, DT_float32, DT_DIMS(3));
    double sum = 0;
    if (dt_item_f64(dt_sum(s, dt_mul(s, t, 2.0), DT_NO_DIMS, false, DT_DTYPE_NONE), &sum)) return fprintf(stderr, "%s\\n", dt_error()), 1;
    printf("%g\\n", sum);
    dt_scope_free(s);
    return 0;
}
"""


@pytest.mark.timeout(300)
@pytest.mark.skipif(not BUILD, reason="there is no build folder: this is not a checkout that was built here")
def test_installed_for_c_programs(tmp_path):
    meson = shutil.which("meson") or str(pathlib.Path(sys.executable).parent / "meson")
    destination = tmp_path / "root"
    subprocess.run(
        [meson, "install", "-C", BUILD, "--no-rebuild", "--tags", "devel", "--destdir", destination], check=True, capture_output=True
    )
    pc = next(destination.rglob("dtorch.pc"))
    include, library = next(destination.rglob("dtorch.h")).parent, next(destination.rglob("libdtorch.so")).parent
    assert (include / "dtorch_ops.h").exists()
    assert "-ldtorch" in pc.read_text()
    (tmp_path / "program.c").write_text(PROGRAM)
    compiler = os.environ.get("CC", "cc").split()
    command = [
        *compiler,
        "-Wall",
        "-Werror",
        tmp_path / "program.c",
        f"-I{include}",
        f"-L{library}",
        "-ldtorch",
        "-o",
        tmp_path / "program",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    done = subprocess.run(
        [tmp_path / "program"], env=os.environ | {"LD_LIBRARY_PATH": str(library)}, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "12\n"), done.stderr


@pytest.mark.timeout(300)
@pytest.mark.skipif(
    not BUILD or BUILD.name != "wheel", reason="a wheel is built in the folder that `make install` made, to compile nothing twice"
)
def test_wheel_carries_the_package(tmp_path):
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-build-isolation",
        "--no-deps",
        f"-Cbuild-dir={BUILD}",
        "-w",
        tmp_path,
        ROOT,
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    wheel = next(tmp_path.glob("dtorch-*.whl"))
    names = zipfile.ZipFile(wheel).namelist()
    assert any(n.startswith("dtorch/_C.") and n.endswith(".so") for n in names)
    for file in (ROOT / "python/dtorch").rglob("*.py"):
        assert file.relative_to(ROOT / "python").as_posix() in names
    assert {"dtorch/py.typed", "dtorch/_C.pyi"} <= set(names)
    assert wheel.stat().st_size < 20_000_000
