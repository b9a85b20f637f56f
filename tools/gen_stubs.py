"""Write python/dtorch/_C.pyi from the operator table: gen_stubs.py [--check]

Each operator gives its functions, its methods and its in-place variants; what is not an operator (properties of Tensor, devices, meshes,
futures, modes) stands in tools/stub_base.pyi and is put before them. --check writes nothing and fails when the file is not current.
"""

import pathlib
import sys

from signature import Param, Signature, parse

ROOT = pathlib.Path(__file__).resolve().parent.parent
FN, METHOD, NN, HIDDEN = 1, 2, 4, 8  # where, as in src/ops/op.h
KINDS = {
    "Tensor": "Tensor", "Tensor!": "Tensor", "Value": "Tensor | Number", "Scalar": "Number", "int": "int", "float": "Number",
    "bool": "bool", "str": "str", "dtype": "dtype", "Generator": "Generator", "Tensor[]": "Sequence[Tensor]",
    "Tensor?[]": "Sequence[Tensor | None]",
}  # fmt: skip
EXTRA = (
    ", device: Device = None, device_mesh: DeviceMesh | None = None, placements: Sequence[Placement] | None = None"
    ", requires_grad: bool = False"
)
KEYWORDS = {"from", "lambda", "in", "is", "not", "global"}


def python_type(kind: str) -> str:
    """The annotation of a parameter of this kind."""
    if kind in KINDS:
        return KINDS[kind]
    base, optional = kind.removesuffix("..."), False
    if base in KINDS:
        return KINDS[base]
    if base.endswith("?"):
        base, optional = base[:-1], True
    if base in KINDS:
        spelled = KINDS[base]
    elif base.startswith("int["):
        spelled = "Sequence[int]" if base == "int[]" else "int | Sequence[int]"
    else:
        raise ValueError(f"no annotation for parameters of type {kind!r}")
    return f"{spelled} | None" if optional else spelled


def spell(p: Param) -> str:
    """A parameter with annotation and default."""
    spelled = python_type(p.kind)
    if p.default == "None" and "None" not in spelled:
        spelled += " | None"
    text = f"{p.name}: {spelled}"
    return text if p.default is None else f"{text} = {p.default.replace('[]', '()')}"


def spell_all(params: list[Param], extra: str) -> str:
    """A parameter list; what follows a default without one, or cannot be positional, becomes keyword only."""
    out, starred, seen_default = [], False, False
    for p in params:
        if not starred and (p.keyword or (seen_default and p.default is None)):
            out.append("*")
            starred = True
        seen_default |= p.default is not None
        out.append(spell(p))
    if extra:
        out += ([] if starred else ["*"]) + [e for e in extra.removeprefix(", ").split(", ") if e]
    return ", ".join(out)


def result_type(s: Signature) -> str:
    if s.is_list:
        return "tuple[Tensor, ...]"
    return "Tensor" if len(s.returns) == 1 else f"tuple[{', '.join(['Tensor'] * len(s.returns))}]"


def variants(params: list[Param], leading: int) -> list[list[Param] | tuple[list[Param], Param, list[Param]]]:
    """The ways to call: f((2, 3)) and, where the signature has "...", also f(2, 3)."""
    for i, p in enumerate(params):
        if p.kind.endswith("...") and i == leading:
            return [params, (params[:i], p, params[i + 1 :])]
    return [params]


def declarations(s: Signature, name: str, method: bool, extra: str) -> list[str]:
    """The `def` lines of one operator under one name."""
    params = list(s.params)
    first = "self"
    if method:
        at = next(i for i, p in enumerate(params) if p.kind.startswith(("Tensor", "Value")))
        params.pop(at)
    lines = []
    for v in variants(params, 0 if method else (1 if params and params[0].kind.startswith("Tensor") else 0)):
        if isinstance(v, tuple):
            before, star, after = v
            after = [Param(p.kind, p.name, p.default, True) for p in after]
            element = "Tensor" if star.kind.startswith("Tensor") else "int"
            inner = [spell(p) for p in before] + [f"*{star.name}: {element}"] + [spell(p) for p in after]
            inner += [e for e in extra.removeprefix(", ").split(", ") if e]
            text = ", ".join(inner)
        else:
            text = spell_all(v, extra)
        text = f"{first}, {text}".rstrip(", ") if method else text
        lines.append(f"def {name}({text}) -> {result_type(s)}: ...")
    return list(dict.fromkeys(lines))


def names_of(op: dict) -> list[str]:
    """The names without a dot under which an operator is known."""
    also = op.get("aliases") or ""
    more = also.split(",") if isinstance(also, str) else list(also)
    return [parse(op["signature"]).base, *(m.strip() for m in more if m.strip() and "." not in m)]


def collect(table: list[dict]) -> tuple[dict[str, list[str]], dict[str, list[str]], dict[str, list[str]]]:
    """-> (functions, methods, nn functions): name -> its `def` lines."""
    functions, methods, nn = {}, {}, {}
    for op in table:
        s = parse(op["signature"])
        extra = EXTRA if op.get("factory") else ""
        for name in names_of(op):
            if name in KEYWORDS:
                continue
            where = op.get("where", FN)
            if where & FN:
                functions.setdefault(name, []).extend(declarations(s, name, False, extra))
            if where & NN:
                nn.setdefault(name, []).extend(declarations(s, name, False, extra))
            if where & METHOD:
                methods.setdefault(name, []).extend(declarations(s, name, True, ""))
            if op.get("inplace") and where & METHOD:
                methods.setdefault(name + "_", []).extend(declarations(s, name + "_", True, ""))
    return functions, methods, nn


def block(group: dict[str, list[str]], indent: str, skip: set[str]) -> list[str]:
    lines = []
    for name in sorted(group):
        if name in skip:
            continue
        defs = list(dict.fromkeys(group[name]))
        for d in defs:
            if len(defs) > 1:
                lines.append(f"{indent}@overload")
            lines.append(indent + d)
    return lines


def stub(table: list[dict], base: str) -> str:
    """The text of the stub file. Names that the hand-written part defines are not defined again."""
    functions, methods, nn = collect(table)
    head, marker, tail = base.partition("    # (operators as methods)\n")
    if not marker:
        raise SystemExit("gen_stubs: tools/stub_base.pyi lost its line '# (operators as methods)'")
    own = {line.split("def ")[1].split("(")[0] for line in base.splitlines() if line.startswith("def ")}
    in_class = {line.split("def ")[1].split("(")[0] for line in head.splitlines() if line.startswith("    def ")}
    out = ["# Generated by tools/gen_stubs.py from the operator table and tools/stub_base.pyi; `make docs` writes it anew."]
    out.append(head.rstrip("\n"))
    out += block(methods, "    ", in_class)
    out += [tail.rstrip("\n"), ""]
    out += block(functions, "", own)
    out += ["", "class _nn:"] + (block({k: ["@staticmethod\n    " + d for d in v] for k, v in nn.items()}, "    ", set()) or ["    pass"])
    return "\n".join(out) + "\n"


def main() -> None:
    from dtorch import _C

    text = stub(_C.op_table(), (ROOT / "tools/stub_base.pyi").read_text())
    target = ROOT / "python/dtorch/_C.pyi"
    if "--check" in sys.argv:
        if not target.exists() or target.read_text() != text:
            sys.exit("python/dtorch/_C.pyi is not current: run `make docs`")
        return
    target.write_text(text)
    print(f"wrote {target.relative_to(ROOT)}: {text.count('def ')} declarations")


if __name__ == "__main__":
    main()
