"""Print the packages of the extras of pyproject.toml named on the command line, for pip: extras.py test lint."""

import pathlib
import re
import sys

# Python 3.10 has no tomllib, and an environment just made has no other reader of TOML.
text = pathlib.Path("pyproject.toml").read_text(encoding="utf-8")
for name in sys.argv[1:]:
    extra = re.search(rf"^{name} = \[(.*?)\]", text, re.M | re.S)
    if not extra:
        sys.exit(f"pyproject.toml has no extra named {name!r}")
    print("\n".join(re.findall(r'"([^"]+)"', extra.group(1))))
