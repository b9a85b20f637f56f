"""Twenty AdamW steps of a small GPT give PyTorch's losses: on one device, batch split, weights split, and both.

The expected losses are PyTorch 2.13's on the same weights and data, float32, one thread; to print them again:

    FRAMEWORK=torch python tests/py/test_gpt_losses.py
"""

import importlib
import os

import numpy as np
import pytest

torch = importlib.import_module(os.environ.get("FRAMEWORK", "dtorch"))
nn, F = torch.nn, torch.nn.functional
L, D, H, T, B, V = 2, 32, 4, 16, 6, 64
PYTORCH = [
    4.756135, 3.831098, 3.344814, 2.901279, 2.520835, 2.194351, 1.882614, 1.606313, 1.368717, 1.163003,
    0.976351, 0.811273, 0.663891, 0.536976, 0.437305, 0.355452, 0.288716, 0.235522, 0.192644, 0.157875,
]  # fmt: skip


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.q, self.k, self.v, self.out = (nn.Linear(D, D) for _ in range(4))
        self.up, self.down = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)

    def forward(self, x):
        b, t, d = x.shape
        h = self.norm1(x)
        q, k, v = (f(h).view(b, t, H, d // H).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.position = nn.Embedding(V, D), nn.Embedding(T, D)
        self.blocks, self.norm = nn.ModuleList([Block() for _ in range(L)]), nn.LayerNorm(D)

    def forward(self, ids, targets):
        x = self.embed(ids) + self.position(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy((self.norm(x) @ self.embed.weight.t()).view(-1, V), targets.view(-1))


def make():
    """The model with weights from NumPy's generator, and one batch."""
    rng, model = np.random.RandomState(0), GPT()
    with torch.no_grad():
        for name, p in model.named_parameters():
            shape = tuple(p.shape)
            values = rng.standard_normal(shape) * 0.2 + (1.0 if "norm" in name and name.endswith("weight") else 0.0)
            p.copy_(torch.from_numpy(values.astype(np.float32)))
    ids, targets = (torch.from_numpy(rng.randint(0, V, (B, T)).astype(np.int64)) for _ in range(2))
    return model, ids, targets


def losses(model, ids, targets, steps=20):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    out = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(ids, targets)
        loss.backward()
        optimizer.step()
        out.append(loss.item())
    return out


@pytest.mark.parametrize("dp, tp", [(1, 1), (2, 1), (1, 2), (2, 2), (4, 1)])
def test_losses_are_pytorchs(dp, tp):
    model, ids, targets = make()
    if dp * tp > 1:
        from dtorch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        mesh = torch.init_device_mesh("cpu", (dp, tp), mesh_dim_names=("dp", "tp"))
        plan = {f"blocks.*.{n}": ColwiseParallel() for n in ("q", "k", "v", "up")}
        parallelize_module(model, mesh["tp"], plan | {f"blocks.*.{n}": RowwiseParallel() for n in ("out", "down")})
        ids, targets = (torch.distribute_tensor(t, mesh, [torch.Shard(0), torch.Replicate()]) for t in (ids, targets))
    got = losses(model, ids, targets)
    assert np.abs(np.array(got) - PYTORCH).max() < 1e-4, got


if __name__ == "__main__":
    torch.set_num_threads(1)
    print([round(v, 6) for v in losses(*make())])
