"""Every mix of parallelism on eight virtual devices against one device: losses of five AdamW steps, gradients of the first, weights after the last.

    python tests/dist/any_mix.py [--model llama|moe] [--sizes even|uneven] [--only DPxPPxTPxCPxEP …] [--write docs/parallelism.md]

A mix is a way to write 8 as dp * pp * tp * cp * ep, all powers of two: there are 35. Each is run with ZeRO 0, 1, 2 and 3. The sizes of the models are
multiples of everything, or, with --sizes uneven, of nothing: 6 heads over 4 devices, 30 positions, a batch of 6. `test_any_mix.py` runs a part of the table.
"""

import argparse
import functools
import itertools
import pathlib
import re
import time

import dtorch
import numpy as np
from dtorch import Shard, models

NAMES = ("dp", "pp", "tp", "cp", "ep")
STEPS = 5
BOUNDS = (
    1e-4,
    1e-3,
    1e-3,
)  # of losses, of weights, of gradients relative to the largest of their parameter (AdamW would hide a wrong scale)
EVEN = {
    "vocab_size": 128,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
}
UNEVEN = {
    "vocab_size": 101,
    "hidden_size": 36,
    "intermediate_size": 50,
    "num_hidden_layers": 9,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
}
BATCH = {"even": (8, 32), "uneven": (6, 30)}  # sequences, positions


def mixes(devices=8):
    """All (dp, pp, tp, cp, ep), powers of two, with this product."""
    powers = [2**i for i in range(devices.bit_length())]
    return [mix for mix in itertools.product(powers, repeat=5) if np.prod(mix) == devices]


def make(kind, sizes):
    dtorch.manual_seed(0)
    fields = EVEN if sizes == "even" else UNEVEN
    if kind == "llama":
        return models.Llama(models.LlamaConfig(**fields, initializer_range=0.1))
    if kind == "gpt2":  # with dropout, biases, learned positions and a tied table
        heads, width = (4, 32) if sizes == "even" else (5, 35)
        return models.GPT2(models.GPT2Config(fields["vocab_size"], 40, width, 6, heads, initializer_range=0.1, dropout=0.1))
    experts = 8 if sizes == "even" else 6
    fields = {**fields, "intermediate_size": 32 if sizes == "even" else 22, "num_hidden_layers": fields["num_hidden_layers"] // 2 + 1}
    return models.MoELlama(models.MoELlamaConfig(**fields, num_local_experts=experts, initializer_range=0.1))


def data(kind, sizes, micro_batches):
    """For each step, a list of micro-batches of (inputs, targets)."""
    rng = np.random.default_rng(7)
    b, t = BATCH[sizes]
    for _ in range(STEPS):
        window = (rng.integers(0, 101, (b, 1)) + rng.integers(1, 4, (b, 1)) * np.arange(t + 1)) % 101  # counting in steps of 1, 2 or 3
        parts = np.array_split(window, micro_batches)
        yield [(dtorch.from_numpy(w[:, :-1].copy()), dtorch.from_numpy(w[:, 1:].copy())) for w in parts]


COLUMNS = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "lm_head", "embed_tokens", "q", "k", "v", "c_fc", "wte")
ROWS = ("o_proj", "down_proj", "c_proj")


def misplaced(model, mesh, zero):
    """Names of parameters that do not lie as the mix says: a mix that only replicates would be right, too, but no mix."""
    size, out, stages = dict(zip(NAMES, mesh.shape, strict=True)), [], set()
    for name, p in model.named_parameters():
        layer, have = name.split(".")[-2], dict(zip(p.device_mesh.mesh_dim_names, p.placements, strict=True))
        cut = Shard(0) if layer in COLUMNS else Shard(1) if layer in ROWS and p.dim() > 1 else None
        stages.add(p.device_mesh)
        bad = size["pp"] > 1 and len(have) > 1 and "pp" in have
        bad |= size["tp"] > 1 and cut is not None and have.get("tp") != cut
        bad |= zero == 3 and size["dp"] > 1 and not isinstance(have.get("dp"), Shard)
        if p.dim() == 3:  # a stack of experts
            bad |= size["ep"] > 1 and have.get("ep") != Shard(0)
            bad |= size["tp"] > 1 and have.get("tp") != Shard(1 if name.endswith("down") else 2)
        out += [name] if bad else []
    return out + ([f"{len(stages)} meshes for {size['pp']} stages"] if len(stages) != size["pp"] else [])


def unsharded_state(optimizer, mesh):
    """How many tensors of the optimizer's state are not cut along dp, which ZeRO 1 and 2 promise."""
    state = [t for entries in optimizer.state.values() for t in entries.values() if isinstance(t, dtorch.Tensor) and t.dim()]
    return sum(not isinstance(t.placements[t.device_mesh.mesh_dim_names.index("dp")], Shard) for t in state) if mesh["dp"].size() > 1 else 0


def train(kind, sizes, micro_batches, mesh=None, zero=0, sequence_parallel=False):
    """Five steps; returns their losses, the weights by name, and the gradients of the first step by name."""
    model = make(kind, sizes)
    if mesh is not None:
        models.parallelize(model, mesh, zero=zero, sequence_parallel=sequence_parallel)
        wrong = misplaced(model, mesh, zero)
        if wrong:
            raise RuntimeError(f"not laid out as the mix says: {wrong[:4]}")
    optimizer = dtorch.optim.AdamW(model.parameters(), lr=1e-3)
    if mesh is not None:
        models.shard_optimizer(optimizer, mesh, zero)
    losses, gradients = [], {}
    for step in data(kind, sizes, micro_batches):
        optimizer.zero_grad()
        total = 0.0
        for x, y in step:
            if mesh is not None:
                x, y = models.distribute_batch(mesh, x, y)
            loss = models.next_token_loss(model(x), y)
            if kind == "moe":
                loss = loss + model.aux_loss()
            loss = loss / len(step)
            loss.backward()
            total = total + loss.detach()
        if not losses:
            gradients = {name: whole(p.grad) for name, p in model.named_parameters() if p.grad is not None}
        optimizer.step()
        if mesh is not None and not losses and zero in (1, 2):
            wrong = unsharded_state(optimizer, mesh)
            if wrong:
                raise RuntimeError(f"the optimizer's state is whole on every device: {wrong} of its tensors")
        losses.append(total)
    return np.array([whole(x) for x in losses]), {name: whole(p) for name, p in model.state_dict().items()}, gradients


def whole(t):
    return t.detach().full_tensor().numpy()


@functools.cache
def one_device(kind, sizes, micro_batches):
    return train(kind, sizes, micro_batches)


def compare(kind, mix, zero, sizes="even", sequence_parallel=False):
    """Largest differences to the one-device run, as BOUNDS lists them."""
    micro_batches = 2 if mix[1] > 1 else 1
    mesh = dtorch.init_device_mesh("cpu", mix, mesh_dim_names=NAMES)
    losses, *many = train(kind, sizes, micro_batches, mesh, zero, sequence_parallel)
    expected, *one = one_device(kind, sizes, micro_batches)
    if not expected[-1] < expected[0] or any(a.keys() != b.keys() for a, b in zip(one, many, strict=True)):
        raise RuntimeError(f"not comparable: losses {expected.tolist()}, names {sorted(one[0].keys() ^ many[0].keys())}")
    (weights, gradients), (weights2, gradients2) = one, many
    return (
        np.abs(losses - expected).max(),
        max(np.abs(weights[n] - weights2[n]).max() for n in weights),
        max(np.abs(gradients[n] - gradients2[n]).max() / (np.abs(gradients[n]).max() + 1e-5) for n in gradients),
    )


def attempt(kind, mix, zero, sizes):
    """The differences, and whether they are good; or the error, and False."""
    try:
        found = compare(kind, mix, zero, sizes)
    except Exception as error:  # the table shows it
        return f"{type(error).__name__}: {str(error)[:200]}".splitlines()[0], False
    return found, all(x < bound for x, bound in zip(found, BOUNDS, strict=True))


def cell(kind, mix, sizes, report):
    """A cell of the table: the largest differences over ZeRO 0 to 3; in bold what fails. And how many of the four fail."""
    found = []
    for zero in range(4):
        start = time.perf_counter()
        what, good = attempt(kind, mix, zero, sizes)
        text = what if isinstance(what, str) else numbers(what)
        report(f"{by(mix)} {kind} {sizes} ZeRO {zero}: {text}{'' if good else '   FAILS'}   {time.perf_counter() - start:.1f} s")
        found.append((what, f"ZeRO {zero}: {text}", good))
    failed = [text for _, text, good in found if not good]
    return (
        f"**{'; '.join(failed)}**" if failed else numbers(max(column) for column in zip(*(what for what, *_ in found), strict=True))
    ), len(failed)


def numbers(found):
    return " / ".join(f"{x:.0e}" for x in found)


def by(mix):
    return "×".join(map(str, mix))


def table(kinds, sizes, only, report):
    """Lines of a Markdown table, and how many runs fail."""
    columns = list(itertools.product(kinds, sizes))
    lines = ["| dp×pp×tp×cp×ep | " + " | ".join(f"{kind}, {size}" for kind, size in columns) + " |", "|" + "---|" * (1 + len(columns))]
    failures = 0
    for mix in mixes():
        if not only or by(mix) in only:
            cells = [cell(kind, mix, size, report) for kind, size in columns]
            failures += sum(n for _, n in cells)
            lines.append(f"| {by(mix)} | " + " | ".join(text for text, _ in cells) + " |")
    return lines, failures


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=("llama", "moe", "gpt2"), help="one model only")
    parser.add_argument("--sizes", choices=("even", "uneven"), help="one kind of sizes only")
    parser.add_argument("--only", nargs="*", help="mixes to run, as 2x1x2x2x1")
    parser.add_argument("--write", type=pathlib.Path, help="put the table between the marks in this file")
    args = parser.parse_args()
    kinds = [args.model] if args.model else ["llama", "moe"]
    only = {m.replace("x", "×") for m in args.only} if args.only else None
    lines, failed = table(kinds, [args.sizes] if args.sizes else ["even", "uneven"], only, lambda line: print(line, flush=True))
    if args.write:
        text = args.write.read_text(encoding="utf-8")
        marked = re.sub(r"(<!-- any mix -->\n).*?(<!-- end -->)", lambda m: m[1] + "\n".join(lines) + "\n" + m[2], text, flags=re.S)
        args.write.write_text(marked, encoding="utf-8")
    print(f"{failed} runs fail" if failed else "every mix gives the one-device run")
    raise SystemExit(bool(failed))


if __name__ == "__main__":
    main()
