"""A small convolutional network reads handwritten digits, the batch split over two devices.

    python examples/digits.py            needs scikit-learn, for its 1797 images of 8 x 8 grey values

Prints the share of held-out images read correctly, and fails below 97 %.
"""

import time

import dtorch as torch
import dtorch.nn as nn
import dtorch.nn.functional as F
import numpy as np
from dtorch.utils.data import DataLoader, TensorDataset
from sklearn.datasets import load_digits

EPOCHS, BATCH, SEED = 15, 64, 7


def data():
    """(train images, train labels, test images, test labels): images (n, 1, 8, 8) float32 in 0..1, every fifth held out."""
    digits = load_digits()
    images = (digits.images / 16).astype(np.float32)[:, None]
    labels = digits.target.astype(np.int64)
    held_out = np.arange(len(labels)) % 5 == 0
    parts = images[~held_out], labels[~held_out], images[held_out], labels[held_out]
    return [torch.from_numpy(np.ascontiguousarray(p)) for p in parts]


def network():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.2), nn.Linear(32 * 4 * 4, 10),
    )  # fmt: skip


def main():
    torch.manual_seed(SEED)
    start = time.perf_counter()
    images, labels, test_images, test_labels = data()
    mesh = torch.init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loader = DataLoader(TensorDataset(images, labels), batch_size=BATCH, shuffle=True)
    for epoch in range(EPOCHS):
        model.train()
        losses = []
        for x, y in loader:  # the last batch is smaller and splits unevenly: nothing to take care of
            x, y = (torch.distribute_tensor(t, mesh, [torch.Shard(0)]) for t in (x, y))
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        print(f"epoch {epoch + 1:2} of {EPOCHS}: loss {torch.stack(losses).mean().item():.4f}", flush=True)
    model.eval()
    with torch.no_grad():
        right = (model(torch.distribute_tensor(test_images, mesh, [torch.Shard(0)])).argmax(1) == test_labels).float().mean().item()
    print(f"{right:.2%} of {len(test_labels)} held-out images, {time.perf_counter() - start:.1f} s")
    if right < 0.97:
        raise SystemExit("digits: expected at least 97 %")


if __name__ == "__main__":
    main()
