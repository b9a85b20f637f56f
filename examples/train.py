"""Train any of the models of dtorch.models, on text or on pictures of digits, over any mix of devices.

    python examples/train.py --model llama --dp 2 --tp 2 --cp 2
    python examples/train.py --model moe   --dp 2 --ep 4 --zero 2
    python examples/train.py --model gpt2  --pp 4 --micro-batches 4 --checkpoint out/gpt2      # later again, with --resume
    python examples/train.py --model resnet --dp 8 --compare

The devices are virtual ones of this machine, unless --device-type says otherwise; their number is dp * pp * tp * cp * ep. The text is the source of
Python's own standard library, byte by byte; the pictures are scikit-learn's digits. --compare trains the first steps again on one device: where
data lies must not change what comes out.
"""

import argparse
import functools
import math
import pathlib
import sysconfig
import time

import dtorch as torch
import dtorch.nn as nn
import dtorch.nn.functional as F
import numpy as np
from dtorch import models

MESH = ("dp", "pp", "tp", "cp", "ep")
MODELS = {
    "gpt2": (models.GPT2, models.GPT2Config),
    "llama": (models.Llama, models.LlamaConfig),
    "moe": (models.MoELlama, models.MoELlamaConfig),
    "vit": (models.ViT, models.ViTConfig),
    "resnet": (models.ResNet, models.ResNetConfig),
}
COMPARED_STEPS, BOUND = 10, 1e-3


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="llama")
    parser.add_argument("--size", default="tiny", help="a preset of the model's configuration")
    for name, what in zip(MESH, ("data", "pipeline", "tensor", "context", "expert"), strict=True):
        parser.add_argument(f"--{name}", type=int, default=1, metavar="N", help=f"devices along {what} parallelism")
    parser.add_argument(
        "--zero", type=int, default=0, choices=range(4), help="cut along dp: 1 optimizer state, 2 gradients too, 3 parameters too"
    )
    parser.add_argument("--sequence-parallel", action="store_true", help="cut what lies between the halves of blocks along tp")
    parser.add_argument("--micro-batches", type=int, default=0, metavar="N", help="parts of a batch; 2 * pp - 2 if left out, at least 1")
    parser.add_argument("--batch", type=int, default=16, help="sequences or pictures of a step")
    parser.add_argument("--context", type=int, default=64, help="bytes of a sequence")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device-type", default="cpu")
    parser.add_argument("--checkpoint", type=pathlib.Path, metavar="DIR", help="write checkpoints there")
    parser.add_argument("--save-every", type=int, default=50, metavar="N", help="steps between checkpoints")
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint, which may come from another mesh")
    parser.add_argument("--compare", action="store_true", help=f"train the first {COMPARED_STEPS} steps on one device as well")
    args = parser.parse_args()
    args.micro_batches = args.micro_batches or max(1, 2 * args.pp - 2)
    presets = MODELS[args.model][1].PRESETS
    if args.size not in presets:
        parser.error(f"--size {args.size}: {args.model} has {', '.join(presets)}")
    if args.resume and not args.checkpoint:
        parser.error("--resume needs --checkpoint DIR")
    if args.batch % args.micro_batches:
        parser.error(f"--batch {args.batch} must be a multiple of --micro-batches {args.micro_batches}")
    return args


class Text:
    """Windows of the standard library's source: (batch, context) bytes, and the bytes one further."""

    unit = "tokens"

    def __init__(self, args):
        root, parts, skip = pathlib.Path(sysconfig.get_paths()["stdlib"]), [], {"test", "tests", "site-packages", "dist-packages"}
        for path in sorted(root.rglob("*.py")):
            if skip.isdisjoint(path.relative_to(root).parts) and sum(map(len, parts)) < 4_000_000:
                parts.append(path.read_bytes())
        text = np.frombuffer(b"\n".join(parts), dtype=np.uint8)
        self.train, self.held_out = np.split(text, [len(text) * 19 // 20])
        self.args, self.size = args, args.batch * args.context

    def batch(self, seed, held_out=False):
        """The batch of a seed: a resumed run sees what an uninterrupted one sees."""
        text, context = self.held_out if held_out else self.train, self.args.context
        at = np.random.default_rng(seed).integers(0, len(text) - context - 1, self.args.batch)
        window = text[at[:, None] + np.arange(context + 1)].astype(np.int64)
        return window[:, :-1], window[:, 1:]

    def show(self, model, mesh):
        """Continue a prompt."""
        prompt = torch.from_numpy(np.frombuffer(b"def read_lines(path):\n    ", dtype=np.uint8).astype(np.int64)[None])
        length = min(200, self.args.context * 2)
        written = model.generate(models.distribute_batch(mesh, prompt, sequence_dim=None), length, temperature=0.7)
        print("--- sample ---\n" + bytes(written.full_tensor()[0].tolist()).decode("utf-8", "replace") + "\n---")


class Digits:
    """Pictures of digits: (batch, 1, 8, 8) floats, and which digit it is."""

    unit = "pictures"

    def __init__(self, args):
        from sklearn.datasets import load_digits

        images, labels = load_digits(return_X_y=True)
        order = np.random.default_rng(0).permutation(len(labels))
        self.images, self.labels = (images[order] / 16).astype(np.float32).reshape(-1, 1, 8, 8), labels[order].astype(np.int64)
        self.args, self.size = args, args.batch

    def batch(self, seed, held_out=False):
        where = (1440, len(self.labels)) if held_out else (0, 1440)
        at = np.random.default_rng(seed).integers(*where, self.args.batch)
        return self.images[at], self.labels[at]

    def show(self, model, mesh):
        """The share of the held-out digits that the model reads."""
        model.eval()
        with torch.no_grad():
            images = models.distribute_batch(mesh, torch.from_numpy(self.images[1440:]), sequence_dim=None)
            right = (model(images).argmax(-1).full_tensor().numpy() == self.labels[1440:]).mean()
        model.train()
        print(f"{100 * right:.1f}% of the held-out digits read")


def loss_of(model, inputs, targets):
    """The loss of one micro-batch, a scalar."""
    out = model(inputs)
    loss = models.next_token_loss(out, targets) if targets.dim() == 2 else F.cross_entropy(out, targets)
    return loss + model.aux_loss() if hasattr(model, "aux_loss") else loss


def learning_rate(step, steps):
    """Linear warm-up over a tenth of the steps, then a cosine down to a tenth of the rate."""
    warm = max(1, steps // 10)
    return (step + 1) / warm if step < warm else 0.1 + 0.45 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))


class Run:
    """A model with its optimizer and schedule, laid out on a mesh."""

    def __init__(self, args, mesh, zero=0, sequence_parallel=False):
        torch.manual_seed(args.seed)
        kind, config = MODELS[args.model]
        self.args, self.mesh, self.step, self.model = args, mesh, 0, kind(config.preset(args.size))
        models.parallelize(self.model, mesh, zero=zero, sequence_parallel=sequence_parallel)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.05)
        models.shard_optimizer(self.optimizer, mesh, zero)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, functools.partial(learning_rate, steps=args.steps))

    def train_step(self, inputs, targets):
        """One step on a batch of NumPy arrays; returns its loss, which nothing has waited for."""
        parts, total = self.args.micro_batches, 0.0
        self.optimizer.zero_grad()
        for x, y in zip(np.array_split(inputs, parts), np.array_split(targets, parts), strict=True):
            x, y = models.distribute_batch(self.mesh, torch.from_numpy(x), torch.from_numpy(y), sequence_dim=1 if y.ndim == 2 else None)
            loss = loss_of(self.model, x, y) / parts
            loss.backward()
            total = total + loss.detach()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.schedule.step()
        self.step += 1
        return total

    def state(self):
        """What a checkpoint holds."""
        return {"model": self.model, "optimizer": self.optimizer, "schedule": self.schedule, "step": self.step}


def train(run, data, until, report=None):
    """Train up to step `until`; returns the losses. They are read one step late, so that no step waits for a print."""
    args, losses, pending = run.args, [], []
    while run.step < until:
        pending.append(run.train_step(*data.batch([args.seed, run.step])))
        if len(pending) == 2:
            losses.append(pending.pop(0).item())
            if report:
                report(run.step - 1, losses)
        if args.checkpoint and report and (run.step % args.save_every == 0 or run.step == until):
            from dtorch import checkpoint

            checkpoint.save(args.checkpoint / f"step-{run.step:06d}", run.state())
    return losses + [loss.item() for loss in pending]


def main():
    args = arguments()
    shape = [getattr(args, name) for name in MESH]
    mesh = torch.init_device_mesh(args.device_type, shape, mesh_dim_names=MESH)
    data = Digits(args) if args.model in ("vit", "resnet") else Text(args)
    run = Run(args, mesh, args.zero, args.sequence_parallel)
    count = sum(p.numel() for p in run.model.parameters())
    print(
        f"{args.model} with {count / 1e6:.2f} M parameters on {' x '.join(f'{n} {s}' for n, s in zip(MESH, shape, strict=True))}, ZeRO {args.zero}"
    )
    if args.resume:
        from dtorch import checkpoint

        state = checkpoint.load(checkpoint.latest(args.checkpoint), run.state())
        run.step = state["step"]
        print(f"resumed after step {run.step}")

    begin, first = time.perf_counter(), run.step

    def report(step, losses):
        if step % 10 == 0:
            speed = data.size * len(losses) / (time.perf_counter() - begin)
            print(f"step {step:4d}   loss {np.mean(losses[-10:]):.4f}   {speed:,.0f} {data.unit}/s", flush=True)

    losses = train(run, data, args.steps, report)
    with torch.no_grad():
        x, y = models.distribute_batch(mesh, *map(torch.from_numpy, data.batch([args.seed, -1 % 2**31], held_out=True)), sequence_dim=None)
        print(f"loss {np.mean(losses[-10:]):.4f} in the last steps, {loss_of(run.model, x, y).item():.4f} on what was held out")
    data.show(run.model, mesh)

    if args.compare and not first:
        alone = train(
            Run(args, torch.init_device_mesh(args.device_type, (1,) * 5, mesh_dim_names=MESH)), data, min(COMPARED_STEPS, args.steps)
        )
        worst = max(abs(a - b) for a, b in zip(alone, losses, strict=False))
        print(f"first {len(alone)} steps again on one device: largest difference of the losses {worst:.1e}")
        if worst > BOUND:
            raise SystemExit(f"the losses should not differ by more than {BOUND:g}")


if __name__ == "__main__":
    main()
