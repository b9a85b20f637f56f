"""List the project's sources for meson, one line a file: "<group> <path>".

    list_files.py                 print the list
    list_files.py --refresh DIR   make the next build in DIR configure anew if files came or went since it was configured

so that adding a file needs no edit of a build file. A folder that does not exist is simply empty.
"""

import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
# (group, folder, suffixes): the first match counts.
GROUPS = [
    ("python", "src/python/", (".c",)),
    ("isa", "src/backend/cpu/isa/", (".c",)),
    ("node", "src/node/main.c", (".c",)),
    ("core", "src/", (".c",)),
    ("unit", "tests/unit/", (".c",)),
    ("cexample", "examples/c/", (".c",)),
    ("header", "include/", (".h",)),
    ("package", "python/dtorch/", (".py", ".pyi", ".json", "py.typed")),
]


def group_of(path: str) -> str | None:
    """The group a file belongs to, or None for a file the build has no use for."""
    for group, folder, suffixes in GROUPS:
        if path.startswith(folder) and path.endswith(suffixes):
            return group
    return None


def listing() -> str:
    """The whole list. Operator families (src/ops/*.c) also stand in the group "ops"."""
    lines = []
    for top in ("src", "include", "python/dtorch", "tests/unit", "examples/c"):
        for folder, _, names in os.walk(ROOT / top):
            for name in names:
                path = (pathlib.Path(folder) / name).relative_to(ROOT).as_posix()
                group = group_of(path)
                if group:
                    lines.append(f"{group} {path}")
                if group == "core" and path.startswith("src/ops/"):
                    lines.append(f"ops {path}")
    return "\n".join(sorted(lines)) + "\n"


def refresh(build: pathlib.Path) -> None:
    """Touch the top build file when the build folder was configured with another list."""
    known = build / "files.txt"
    if known.exists() and known.read_text() != listing():
        (ROOT / "meson.build").touch()


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "--refresh":
        refresh(pathlib.Path(sys.argv[2]))
    elif len(sys.argv) == 1:
        sys.stdout.write(listing())
    else:
        sys.exit(__doc__)
