"""What does it cost to have the framework at all? Import time in a fresh process, and the size of the packages it needs."""

import importlib.metadata
import os
import re
import subprocess
import sys

framework = os.environ.get("FRAMEWORK", "dtorch")
from common import show  # noqa: E402

code = f"import time; t = time.perf_counter(); import {framework}; print(time.perf_counter() - t)"
runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(2)]
show("import", min(float(run.stdout) for run in runs) * 1e3, "ms")


def installed_size(package, seen):
    """Bytes of a package's files and of those it requires (extras left out)."""
    key = re.sub(r"[-_.]+", "-", package).lower()
    if key in seen:
        return 0
    seen.add(key)
    try:
        dist = importlib.metadata.distribution(package)
    except importlib.metadata.PackageNotFoundError:
        return 0
    paths = [dist.locate_file(f) for f in dist.files or []]
    size = sum(os.path.getsize(p) for p in paths if os.path.isfile(p))
    needs = [r for r in dist.requires or [] if "extra ==" not in r]
    return size + sum(installed_size(re.match(r"[\w.-]+", r).group(), seen) for r in needs)


size = installed_size(framework, set())
if size:  # not a checkout on PYTHONPATH
    show("installed size with dependencies", size / 1e6, "MB")
