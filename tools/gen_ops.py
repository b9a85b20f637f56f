#!/usr/bin/env python3
"""Write dtorch_ops.h and dtorch_ops.c, the C functions of all operators, from the signature strings of src/ops.

    gen_ops.py OUT.h OUT.c SOURCE.c ...

Each `const dt_op dt_op_NAME = { .sig = "…" }` becomes one function `dt_NAME`. Parameters follow the signature; there are no defaults
in C. One result is returned; several are put into `dt_tensor **out`; a list comes back as an array that the scope owns. Parameters
that take a tensor or a number are dt_value behind a macro, so that `dt_mul(s, x, 2.0)` and `dt_mul(s, x, y)` both work.
"""

import pathlib
import re
import sys

LITERAL = re.compile(r"const\s+dt_op\s+dt_op_(\w+)\s*=\s*\{(.*?)\n\};", re.S)
SIG = re.compile(r'\.sig\s*=\s*((?:"(?:[^"\\]|\\.)*"\s*)+)')
FLAGS = re.compile(r"\.flags\s*=\s*([^,\n]+)")


def split_params(text):
    """The parameters of a signature, split at commas outside brackets and quotes."""
    out, depth, cur, quote = [], 0, "", False
    for ch in text:
        if ch == "'":
            quote = not quote
        if ch in "([" and not quote:
            depth += 1
        if ch in ")]" and not quote:
            depth -= 1
        if ch == "," and depth == 0 and not quote:
            out.append(cur.strip())
            cur = ""
        else:
            cur += ch
    if cur.strip():
        out.append(cur.strip())
    return out


def parse(sig):
    """-> (parameters as (type, name), results: a number, or -1 for a list)"""
    head, result = sig.rsplit("->", 1)
    inner = head[head.index("(") + 1 : head.rindex(")")]
    params = []
    for p in split_params(inner):
        if p == "*":
            continue
        kind, rest = p.split(None, 1)
        params.append((kind, rest.split("=")[0].strip()))
    result = result.strip()
    if result == "Tensor[]":
        return params, -1
    return params, len(split_params(result[1:-1])) if result.startswith("(") else 1


def c_param(kind, name):
    """-> (C parameter, statement that fills argument `a`, condition under which the call is void)"""
    name = {"input": "input", "default": "default_", "register": "register_", "long": "long_"}.get(name, name)
    optional, base = "?" in kind, kind.replace("?", "").replace("!", "").replace("...", "")
    if base == "Tensor[]":
        return f"dt_list {name}", f"dt_arg_list(a, {name});", f"!dt_list_ok({name})" if not optional else None
    if base == "Tensor":
        return f"dt_tensor *{name}", f"dt_arg_tensor(a, {name});", None if optional else f"!{name}"
    if base in ("Value", "Scalar"):
        return f"dt_value {name}", f"dt_arg_value(a, {name});", f"({name}.kind == 1 && !{name}.t)"
    if base == "int":
        return f"int64_t {name}", f"dt_arg_int(a, {name});", None
    if base == "float":
        return f"double {name}", f"dt_arg_float(a, {name});", None
    if base == "bool":
        return f"bool {name}", f"dt_arg_bool(a, {name});", None
    if base == "str":
        return f"const char *{name}", f"dt_arg_str(a, {name});", None
    if base == "dtype":
        return f"int {name}", f"dt_arg_dtype(a, {name});", None
    if base.startswith("int["):
        return f"dt_dims {name}", f"dt_arg_dims(a, {name});", None
    if base == "Generator":
        return f"dt_generator *{name}", f"args.generator = {name}; (void)a;", None
    raise SystemExit(f"gen_ops: unknown parameter type '{kind}' of '{name}'")


def emit(name, sig, flags):
    """-> (header text, source text) of one operator."""
    params, results = parse(sig)
    cs = [c_param(k, n) for k, n in params]
    decl = ["dt_scope *s"] + [c for c, _, _ in cs]
    if "DT_F_FACTORY" in flags or "DT_F_SPEC" in flags:
        decl.append("const struct dt_spec *spec")
    if results > 1:
        ret, tail, void, call = "int ", ["dt_tensor **out"], "-1", f"dt_scope_calln(s, &dt_op_{name}, &args, {results}, out)"
    elif results < 0:
        ret, tail, void, call = "dt_tensor **", ["int *n_out"], "NULL", f"dt_scope_call_list(s, &dt_op_{name}, &args, n_out)"
    else:
        ret, tail, void, call = "dt_tensor *", [], "NULL", f"dt_scope_call1(s, &dt_op_{name}, &args)"
    values = [i for i, (k, _) in enumerate(params) if k.startswith(("Value", "Scalar"))]
    fn = f"dt_{name}" + ("_v" if values else "")
    proto = f"{ret}{fn}({', '.join(decl + tail)})"
    head = f"/* {sig} */\nDT_API {proto};\n"
    if values:
        macro = [d.rstrip("*").split()[-1].lstrip("*") for d in decl + tail]
        body = ", ".join(f"DT_V({m})" if i - 1 in values else f"({m})" for i, m in enumerate(macro))
        head += f"#define dt_{name}({', '.join(macro)}) {fn}({body})\n"
    src = [f"{proto} {{"]
    if results < 0:
        src.append("    *n_out = 0;")
    if results > 1:
        src.append(f"    for (int i = 0; i < {results}; i++) out[i] = NULL;")
    bad = ["dt_scope_status(s)"] + [b for _, _, b in cs if b]
    src.append(f"    if ({' || '.join(bad)}) return {void};")
    src.append("    dt_args args = {.spec = NULL};")
    src += [f"    {{ dt_arg *a = &args.a[{i}]; {st} }}" for i, (_, st, _) in enumerate(cs)]
    if "spec" in decl[-1]:
        src.append("    args.spec = spec;")
    src += [f"    return {call};", "}", ""]
    return head, "\n".join(src)


def main():
    out_h, out_c, *sources = sys.argv[1:]
    ops = {}
    for path in sources:
        if not path.endswith(".c"):
            continue
        text = pathlib.Path(path).read_text(encoding="utf-8")
        for m in LITERAL.finditer(text):
            s = SIG.search(m[2])
            if not s:
                raise SystemExit(f"gen_ops: {path}: dt_op_{m[1]} has no .sig")
            f = FLAGS.search(m[2])
            ops[m[1]] = ("".join(re.findall(r'"((?:[^"\\]|\\.)*)"', s[1])), f[1] if f else "")
    head, src = [], []
    for name in sorted(ops):
        h, c = emit(name, *ops[name])
        head.append(h)
        src.append(c)
    with open(out_h, "w", encoding="utf-8") as f:
        f.write(
            "/* Generated by tools/gen_ops.py from the signatures in src/ops. One function an operator; see dtorch.h. */\n"
            '#ifndef DTORCH_OPS_H\n#define DTORCH_OPS_H\n#include "dtorch.h"\n\n' + "\n".join(head) + "\n#endif\n"
        )
    with open(out_c, "w", encoding="utf-8") as f:
        f.write('/* Generated by tools/gen_ops.py. */\n#include "client/scope.h"\n#include "dtorch_ops.h"\n\n' + "\n".join(src))


if __name__ == "__main__":
    main()
