"""Read the signature strings of the operator table, for the tools that write stubs and the reference.

    >>> parse("max.dim(Tensor input, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)").params[1]
    Param(kind='int', name='dim', default=None, keyword=False)

The grammar stands at the top of src/ops/op.h.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Param:
    kind: str  # as written: "Tensor?", "int[]...", "dtype?"
    name: str
    default: str | None  # as written, None without
    keyword: bool  # keyword only


@dataclass(frozen=True)
class Signature:
    name: str  # "max.dim"
    params: list[Param]
    returns: list[str]  # names of the results; [""] for one without a name
    is_list: bool  # returns Tensor[]
    factory: bool = field(default=False)

    @property
    def base(self) -> str:
        return self.name.split(".")[0]


def split_top(text: str) -> list[str]:
    """Split at the commas that stand in no bracket and no quote."""
    parts, depth, quoted, start = [], 0, False, 0
    for i, c in enumerate(text):
        if c == "'":
            quoted = not quoted
        elif not quoted:
            depth += (c in "([") - (c in ")]")
            if c == "," and depth == 0:
                parts.append(text[start:i].strip())
                start = i + 1
    return [p for p in [*parts, text[start:].strip()] if p]


def parse(text: str) -> Signature:
    """The parts of one signature string."""
    head, _, result = text.rpartition("->")
    name, _, inner = head.partition("(")
    params, keyword = [], False
    for part in split_top(inner[: inner.rindex(")")]):
        if part == "*":
            keyword = True
            continue
        kind, rest = part.split(None, 1)
        spelled, _, default = rest.partition("=")
        params.append(Param(kind, spelled.strip(), default.strip() or None, keyword))
    result = result.strip()
    if result.startswith("("):
        returns = [(r.split() + [""])[1] for r in split_top(result[1:-1])]
    else:
        returns = [""]
    return Signature(name.strip(), params, returns, result == "Tensor[]")
