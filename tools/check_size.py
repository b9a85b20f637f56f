"""Check that no source file of ours is longer than 800 lines: exit code 1 and one line a fault."""

import subprocess
import sys

LIMIT = 800

files = subprocess.run(["git", "ls-files", "*.c", "*.h", "*.py", "*.sh"], capture_output=True, text=True, check=True).stdout.split()
bad = []
for name in files:
    with open(name, encoding="utf-8") as f:
        lines = sum(1 for _ in f)
    if lines > LIMIT:
        bad.append(f"{name}: {lines} lines, at most {LIMIT} are allowed: split it by what its parts are for")
print("\n".join(bad) if bad else f"{len(files)} files, none over {LIMIT} lines")
sys.exit(bool(bad))
