"""What does a mix of parallelism cost each device: memory that stays, memory at most, bytes sent for a step?

    python bench/mixes.py [--write docs/parallelism.md]

A Llama of 4.5 M parameters (and one with experts, of 14 M), a batch of 8 sequences of 256 tokens, AdamW, float32, on eight virtual devices. Each mix runs
in a process of its own, for the peak is that of a process. Numbers are those of the device that has most.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys

import dtorch as torch
from dtorch import models

NAMES = ("dp", "pp", "tp", "cp", "ep")
# model, (dp, pp, tp, cp, ep), ZeRO, sequence parallel, micro-batches
MIXES = [
    ("llama", (1, 1, 1, 1, 1), 0, False, 1), ("llama", (8, 1, 1, 1, 1), 0, False, 1), ("llama", (8, 1, 1, 1, 1), 1, False, 1),
    ("llama", (8, 1, 1, 1, 1), 2, False, 1), ("llama", (8, 1, 1, 1, 1), 3, False, 1), ("llama", (2, 1, 4, 1, 1), 0, False, 1),
    ("llama", (2, 1, 4, 1, 1), 0, True, 1), ("llama", (2, 1, 4, 1, 1), 3, True, 1), ("llama", (1, 1, 1, 8, 1), 0, False, 1),
    ("llama", (2, 1, 1, 4, 1), 3, False, 1), ("llama", (2, 4, 1, 1, 1), 0, False, 4), ("llama", (2, 2, 2, 1, 1), 1, True, 4),
    ("moe", (1, 1, 1, 1, 1), 0, False, 1), ("moe", (8, 1, 1, 1, 1), 0, False, 1), ("moe", (1, 1, 1, 1, 8), 0, False, 1),
    ("moe", (2, 1, 1, 1, 4), 1, False, 1),
]  # fmt: skip


def measure(kind, mix, zero, sequence_parallel, micro_batches):
    """One mix in this process: (bytes that stay, bytes at most, bytes sent for a step), each of the device with most."""
    model = models.Llama(models.LlamaConfig.preset("small")) if kind == "llama" else models.MoELlama(models.MoELlamaConfig.preset("small"))
    mesh = torch.init_device_mesh("cpu", mix, mesh_dim_names=NAMES)
    models.parallelize(model, mesh, zero=zero, sequence_parallel=sequence_parallel)
    optimizer = torch.optim.AdamW(model.parameters())
    models.shard_optimizer(optimizer, mesh, zero)
    parts = [
        models.distribute_batch(mesh, *(torch.randint(0, 256, (8 // micro_batches, 256)) for _ in range(2))) for _ in range(micro_batches)
    ]

    def step():
        optimizer.zero_grad()
        for x, y in parts:
            loss = models.next_token_loss(model(x), y) / micro_batches
            if kind == "moe":
                loss = loss + model.aux_loss() / micro_batches
            loss.backward()
        optimizer.step()

    for _ in range(3):
        step()
        torch.synchronize()
    with torch.comm_scope() as report:
        step()
    optimizer.zero_grad()
    torch.synchronize()
    stats = [torch.memory_stats(f"cpu:{i}") for i in range(torch.Size(mix).numel())]
    sent = max(report.per_device.values(), default=0)
    return max(s["allocated"] for s in stats), max(s["allocated_peak"] for s in stats), sent


def table(report):
    lines = ["| model | dp×pp×tp×cp×ep | further | stays, MiB | at most, MiB | sent for a step, MiB |", "|---|---|---|---|---|---|"]
    for case in MIXES:
        done = subprocess.run([sys.executable, __file__, "--case", json.dumps(case)], capture_output=True, text=True, check=True)
        stays, most, sent = (x / 2**20 for x in json.loads(done.stdout))
        kind, mix, zero, sequence_parallel, micro_batches = case
        further = (
            [f"ZeRO {zero}"] * bool(zero)
            + ["sequence parallel"] * sequence_parallel
            + [f"{micro_batches} micro-batches"] * (micro_batches > 1)
        )
        lines.append(f"| {kind} | {'×'.join(map(str, mix))} | {', '.join(further)} | {stays:.1f} | {most:.1f} | {sent:.1f} |")
        report(lines[-1])
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--write", type=pathlib.Path, help="put the table between the marks in this file")
    args = parser.parse_args()
    if args.case:
        print(json.dumps(measure(*json.loads(args.case))))
        return
    lines = table(lambda line: print(line, flush=True))
    if args.write:
        text = args.write.read_text(encoding="utf-8")
        marked = re.sub(r"(<!-- mixes -->\n).*?(<!-- end -->)", lambda m: m[1] + "\n".join(lines) + "\n" + m[2], text, flags=re.S)
        args.write.write_text(marked, encoding="utf-8")


if __name__ == "__main__":
    main()
