"""A sample program that mypy checks against the generated stubs (`make lint`); tests/py/test_stubs.py runs it."""

import dtorch as torch
import dtorch.nn as nn
import dtorch.nn.functional as F
from dtorch import Tensor


class Net(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(4, width)
        self.second = nn.Linear(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.first(x)
        return self.second(F.relu(hidden))


def train(steps: int) -> list[float]:
    torch.manual_seed(0)
    model = Net(8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(16, 4), torch.randint(0, 2, (16,))
    losses: list[float] = []
    for _ in range(steps):
        loss: Tensor = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def shapes() -> tuple[torch.Size, int]:
    a = torch.zeros(2, 3, dtype=torch.float32, requires_grad=True)
    b: Tensor = a.view(3, 2).transpose(0, 1) @ torch.ones((3, 2))
    values, indices = b.max(dim=1)
    total: Tensor = (values + 1).sum() * 2 - indices.to(torch.float32).mean()
    parts: tuple[Tensor, ...] = torch.split(a, 1, dim=0)
    with torch.no_grad():
        a[0, 1:] = 5
    return total.shape, len(parts)


def on_a_mesh() -> Tensor:
    mesh = torch.init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
    x = torch.distribute_tensor(torch.arange(6).float(), mesh, [torch.Shard(0)])
    first: Tensor = x.to_local(0)
    return x.redistribute(placements=[torch.Replicate()]) + first.sum()


if __name__ == "__main__":
    print(train(3), shapes(), on_a_mesh().full_tensor())
