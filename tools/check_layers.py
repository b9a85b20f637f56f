"""Check that every include of src/ goes downwards.

    check_layers.py [ROOT]     exit code 1 and one line a fault when an include is not allowed

Includes are written relative to src ("base/status.h"). A folder may include itself and the folders listed for it here; nothing else.
The order is the one of docs/architecture.md: who sits higher knows who sits lower, never the other way round.
"""

import pathlib
import re
import sys

MAY_SEE = {
    "base": [],
    "tensor": ["base"],
    "ops": ["tensor", "base"],
    "client": ["controller", "plan", "ops", "tensor", "base"],  # the controller's entrance: a ring, and what is written to it
    "plan": ["ops", "tensor", "base"],
    "graph": ["plan", "ops", "tensor", "base"],  # a subgraph's values know the buffers that a run left them in
    "passes": ["graph", "plan", "ops", "tensor", "base"],
    "controller": ["passes", "graph", "worker", "comm", "plan", "ops", "tensor", "base"],
    "comm": ["plan", "ops", "tensor", "base"],
    "worker": ["comm", "plan", "ops", "tensor", "base"],
    "backend": ["plan", "ops", "tensor", "base"],
    "node": ["worker", "comm", "plan", "ops", "tensor", "base"],
    "python": ["node", "client", "controller", "comm", "plan", "ops", "tensor", "base"],
}
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)
PUBLIC = re.compile(r"dtorch\w*\.h")


def faults(root: pathlib.Path) -> list[str]:
    """One line for every include that is not allowed, and for every one that is not written relative to src."""
    src, found = root / "src", []
    for file in sorted(src.rglob("*.[ch]")):
        relative = file.relative_to(src)
        layer = relative.parts[0]
        if layer not in MAY_SEE:
            found.append(f"src/{relative}: folder '{layer}' is not in tools/check_layers.py")
            continue
        text = file.read_text(encoding="utf-8")
        for match in INCLUDE.finditer(text):
            name, line = match.group(1), text.count("\n", 0, match.start(1)) + 1
            if PUBLIC.fullmatch(name):  # the public API: what it declares is client's
                target = "client"
                if layer in ("base", "tensor", "ops", "graph"):
                    continue  # dtorch.h declares the shared status codes and dtypes; it includes nothing of src
            elif (src / name).is_file():
                target = name.split("/")[0]
            elif (file.parent / name).is_file():
                found.append(f'src/{relative}:{line}: "{name}" is not written relative to src')
                continue
            else:
                found.append(f'src/{relative}:{line}: "{name}" does not exist in src')
                continue
            if target != layer and target not in MAY_SEE[layer]:
                found.append(f'src/{relative}:{line}: {layer} must not include {target} ("{name}")')
    return found


if __name__ == "__main__":
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent.parent
    found = faults(root)
    print("\n".join(found) if found else "every include goes downwards")
    sys.exit(bool(found))
