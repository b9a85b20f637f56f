"""Train a small GPT on Python's own standard library, on four virtual devices, and look at everything that comes of it.

    make demo            or            python examples/demo.py [--steps N] [--out DIR]

One program, one model, one training loop. The mesh is 2 x 2: the batch is split over "dp" (data parallel), the weights of attention
and of the feed-forward layers over "tp" (tensor parallel). Nothing in the model knows about it. At the end the first steps are
repeated on one device, and the losses compared: where data lies must not change what comes out.

Writes loss.png, model.safetensors and sample.txt.
"""

import argparse
import math
import pathlib
import sysconfig
import time

import dtorch as torch
import dtorch.nn as nn
import dtorch.nn.functional as F
import numpy as np
from dtorch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from dtorch.io import load_file, save_file
from PIL import Image, ImageDraw
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

LAYERS, WIDTH, HEADS, CONTEXT, BATCH, VOCABULARY = 3, 192, 6, 64, 16, 256
LEARNING_RATE, WARM_UP, SEED = 1e-3, 20, 1234
STEPS, COMPARED_STEPS = 600, 10
console = Console()


class Block(nn.Module):
    """Attention and a feed-forward layer, each on a normalised copy of the stream x: (batch, time, WIDTH)."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        b, t, _ = x.shape
        h = self.norm1(x)
        q, k, v = (f(h).view(b, t, HEADS, WIDTH // HEADS).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, WIDTH))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class GPT(nn.Module):
    """Bytes (batch, time) to the logits of the next byte (batch, time, VOCABULARY)."""

    def __init__(self):
        super().__init__()
        self.embed, self.position = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                scale = 0.02 / math.sqrt(2 * LAYERS) if name.endswith(("out.weight", "down.weight")) else 0.02
                nn.init.normal_(p, std=scale)

    def forward(self, tokens):
        x = self.embed(tokens) + self.position(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


# How the weights of a block are split over "tp": columns first, rows second, so one sum over the devices ends each half.
TENSOR_PARALLEL = {
    "blocks.*.q": ColwiseParallel(),
    "blocks.*.k": ColwiseParallel(),
    "blocks.*.v": ColwiseParallel(),
    "blocks.*.out": RowwiseParallel(),
    "blocks.*.up": ColwiseParallel(),
    "blocks.*.down": RowwiseParallel(),
}


def standard_library(limit=6_000_000):
    """The source of the standard library as bytes: the modules in alphabetical order, no tests, at most `limit` bytes."""
    root = pathlib.Path(sysconfig.get_paths()["stdlib"])
    skip = {"test", "tests", "site-packages", "dist-packages", "idlelib", "lib2to3", "encodings", "__pycache__"}
    parts, size = [], 0
    for path in sorted(root.rglob("*.py")):
        if skip.isdisjoint(path.relative_to(root).parts) and size < limit:
            parts.append(path.read_bytes())
            size += len(parts[-1])
    return np.frombuffer(b"\n".join(parts), dtype=np.uint8)


def batches(text, seed):
    """Endless (inputs, targets), each (BATCH, CONTEXT) int64: windows at random places, targets one byte further."""
    rng = np.random.default_rng(seed)
    while True:
        at = rng.integers(0, len(text) - CONTEXT - 1, BATCH)
        window = text[at[:, None] + np.arange(CONTEXT + 1)].astype(np.int64)
        yield torch.from_numpy(window[:, :-1].copy()), torch.from_numpy(window[:, 1:].copy())


def learning_rate(step, steps):
    """Linear warm-up, then a cosine down to a tenth."""
    if step < WARM_UP:
        return (step + 1) / WARM_UP
    return 0.1 + 0.45 * (1 + math.cos(math.pi * (step - WARM_UP) / max(1, steps - WARM_UP)))


def train(text, steps, total, mesh=None, report=None):
    """Train for `steps` steps of a schedule of `total`; returns the model and the losses. `mesh` None: one device."""
    torch.manual_seed(SEED)
    model = GPT()
    if mesh is not None:
        parallelize_module(model, mesh["tp"], TENSOR_PARALLEL)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: learning_rate(step, total))
    data, losses, pending = batches(text, SEED), [], []
    for _ in range(steps):
        inputs, targets = next(data)
        if mesh is not None:
            inputs = torch.distribute_tensor(inputs, mesh, [torch.Shard(0), torch.Replicate()])
            targets = torch.distribute_tensor(targets, mesh, [torch.Shard(0), torch.Replicate()])
        loss = F.cross_entropy(model(inputs).view(-1, VOCABULARY), targets.view(-1))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        pending.append(loss.detach())
        if len(pending) == 2:  # a loss is read while the next step is already on its way: no step waits for a print
            losses.append(pending.pop(0).item())
            if report:
                report(losses)
    losses += [loss.item() for loss in pending]
    if report:
        report(losses)
    return model, losses


def train_with_bar(text, steps, mesh):
    """As `train`, with a progress bar that shows loss, tokens per second and the time left."""
    columns = [
        TextColumn("training"), BarColumn(), MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.3f}  {task.fields[speed]:,.0f} tokens/s  left"), TimeRemainingColumn(),
    ]  # fmt: skip
    start = time.perf_counter()
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("train", total=steps, loss=math.nan, speed=0.0)

        def report(losses):
            done = len(losses)
            speed = done * BATCH * CONTEXT / (time.perf_counter() - start)
            bar.update(task, completed=done, loss=sum(losses[-20:]) / len(losses[-20:]), speed=speed)
            if not console.is_terminal and done % 50 == 0:
                console.print(f"step {done} of {steps}: loss {losses[-1]:.3f}, {speed:,.0f} tokens/s")

        return train(text, steps, steps, mesh, report)


def held_out_loss(model, text, rounds=8):
    """Mean loss in nats a byte over windows the training has not seen."""
    data, total = batches(text, SEED + 1), 0.0
    with torch.no_grad():
        for _ in range(rounds):
            inputs, targets = next(data)
            total = total + F.cross_entropy(model(inputs).view(-1, VOCABULARY), targets.view(-1))
    return (total / rounds).item()


def sample(model, prompt, length=400, temperature=0.7):
    """Continue `prompt` by `length` bytes, each drawn from the softmax of the logits over `temperature`."""
    torch.manual_seed(SEED)
    text = list(prompt.encode())
    with torch.no_grad():
        for _ in range(length):
            window = text[-CONTEXT:]
            tokens = torch.tensor([window + [0] * (CONTEXT - len(window))])  # one shape for all: the padding is never looked at
            logits = model(tokens)[0, len(window) - 1]
            text.append(torch.multinomial(F.softmax(logits / temperature, dim=-1), 1).item())
    return bytes(text).decode("utf-8", "replace")


def draw_curve(losses, path, width=900, height=500, margin=60):
    """The losses, and their mean over 20 steps, as a PNG."""
    image = Image.new("RGB", (width, height), "white")
    draw = ImageDraw.Draw(image)
    low, high = math.floor(min(losses)), math.ceil(max(losses))
    right, bottom = width - margin // 2, height - margin

    def place(step, loss):
        x = margin + (right - margin) * step / max(1, len(losses) - 1)
        return x, bottom - (bottom - margin) * (loss - low) / (high - low)

    for level in range(low, high + 1):
        draw.line([place(0, level), place(len(losses) - 1, level)], fill="#dddddd")
        draw.text((margin - 28, place(0, level)[1] - 6), f"{level}", fill="black")
    for step in range(0, len(losses), max(1, len(losses) // 8)):
        draw.text((place(step, low)[0] - 8, bottom + 8), f"{step}", fill="black")
    mean = [sum(losses[max(0, i - 19) : i + 1]) / len(losses[max(0, i - 19) : i + 1]) for i in range(len(losses))]
    draw.line([place(i, v) for i, v in enumerate(losses)], fill="#9ecae1", width=1)
    draw.line([place(i, v) for i, v in enumerate(mean)], fill="#08519c", width=3)
    draw.text((margin, margin // 3), "training loss, nats a byte, by step (thick: mean of 20)", fill="black")
    image.save(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("out"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    begin = time.perf_counter()

    text = standard_library()
    split = len(text) * 19 // 20
    mesh = torch.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    parameters = sum(p.numel() for p in GPT().parameters())
    console.print(f"{len(text) / 1e6:.1f} MB of Python, {parameters / 1e6:.2f} M parameters, mesh dp 2 x tp 2 of virtual devices")

    model, losses = train_with_bar(text[:split], args.steps, mesh)
    draw_curve(losses, args.out / "loss.png")
    save_file({name: p.full_tensor() for name, p in model.state_dict().items()}, args.out / "model.safetensors")

    restored = GPT()  # on one device: a checkpoint does not remember the mesh it was trained on
    restored.load_state_dict(load_file(args.out / "model.safetensors"))
    final = sum(losses[-20:]) / len(losses[-20:])
    console.print(f"loss {final:.3f} nats a byte (mean of the last 20 steps), {held_out_loss(restored, text[split:]):.3f} on held-out text")
    written = sample(restored, "def read_lines(path):\n")
    (args.out / "sample.txt").write_text(written, encoding="utf-8")
    console.rule("sample")
    console.print(written, markup=False, highlight=False)
    console.rule()

    _, alone = train(text[:split], min(COMPARED_STEPS, args.steps), args.steps)
    worst = max(abs(a - b) for a, b in zip(alone, losses, strict=False))
    console.print(f"first {len(alone)} steps again on one device: largest difference of the losses {worst:.2e}")
    console.print(f"wrote {args.out}/loss.png, model.safetensors and sample.txt; {time.perf_counter() - begin:.0f} s in all")
    if worst > 1e-4 or (args.steps >= STEPS and final > 2.2):
        raise SystemExit("demo: the loss should end below 2.2 and the difference stay below 1e-4")


if __name__ == "__main__":
    main()
