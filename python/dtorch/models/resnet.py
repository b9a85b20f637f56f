"""ResNet: blocks of convolutions around which the input is added back. Names are torchvision's, so its weights load as they are.

Source: arXiv 1512.03385; the stride stands in the 3x3 convolution of a bottleneck (arXiv 1706.02677).
"""

from __future__ import annotations

from dataclasses import dataclass

from dtorch import Replicate, Shard, nn
from dtorch.distributed.tensor.parallel import ColwiseParallel
from dtorch.models.config import Config
from dtorch.models.plan import Channels

F = nn.functional

__all__ = ["ResNet", "ResNetConfig"]


@dataclass(frozen=True)
class ResNetConfig(Config):
    """`blocks`: how many in each of the four stages. `cifar_stem`: a 3x3 convolution and no pooling in front, for images of about 32 pixels."""

    blocks: tuple = (2, 2, 2, 2)
    bottleneck: bool = False
    width: int = 64
    num_channels: int = 3
    num_classes: int = 1000
    cifar_stem: bool = False

    PRESETS = {
        "tiny": {"blocks": (1, 1, 1, 1), "width": 8, "num_channels": 1, "num_classes": 10, "cifar_stem": True},
        "18": {},
        "34": {"blocks": (3, 4, 6, 3)},
        "50": {"blocks": (3, 4, 6, 3), "bottleneck": True},
        "101": {"blocks": (3, 4, 23, 3), "bottleneck": True},
        "18-cifar": {"cifar_stem": True, "num_classes": 10},
    }


class BasicBlock(nn.Module):
    """Two 3x3 convolutions. x: (b, c_in, h, w) to (b, width, h / stride, w / stride)."""

    expansion = 1

    def __init__(self, c_in, width, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(c_in, width, 3, stride, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.downsample = shortcut(c_in, width, stride)

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions. x: (b, c_in, h, w) to (b, 4 * width, h / stride, w / stride)."""

    expansion = 4

    def __init__(self, c_in, width, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(c_in, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)
        self.downsample = shortcut(c_in, 4 * width, stride)

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


def shortcut(c_in, c_out, stride):
    """What the input goes through before it is added back: nothing where its shape is that of the output."""
    if stride == 1 and c_in == c_out:
        return None
    return nn.Sequential(nn.Conv2d(c_in, c_out, 1, stride, bias=False), nn.BatchNorm2d(c_out))


class ResNet(nn.Module):
    """Images (b, channels, h, w) to logits (b, num_classes)."""

    def __init__(self, config):
        super().__init__()
        self.config = c = config
        kind, width = (Bottleneck if c.bottleneck else BasicBlock), c.width
        stem = {"kernel_size": 3, "padding": 1} if c.cifar_stem else {"kernel_size": 7, "stride": 2, "padding": 3}
        self.conv1, self.bn1 = nn.Conv2d(c.num_channels, width, bias=False, **stem), nn.BatchNorm2d(width)
        self.maxpool = nn.Identity() if c.cifar_stem else nn.MaxPool2d(3, stride=2, padding=1)
        c_in = width
        for i, blocks in enumerate(c.blocks):
            stage = []
            for j in range(blocks):
                stage.append(kind(c_in, width << i, 2 if i and not j else 1))
                c_in = (width << i) * kind.expansion
            self.add_module(f"layer{i + 1}", nn.Sequential(*stage))
        self.fc = nn.Linear(c_in, c.num_classes)
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images):
        x = self.maxpool(F.relu(self.bn1(self.conv1(images))))
        for i in range(len(self.config.blocks)):
            x = getattr(self, f"layer{i + 1}")(x)
        return self.fc(x.mean((2, 3)))

    def tensor_plan(self, sequence_parallel=False):
        """Which module is cut how along "tp": the inner channels of each block, and the classes. `sequence_parallel` has no meaning here."""
        last = 3 if self.config.bottleneck else 2
        plan = {f"layer*.*.conv{last - 1}": Channels(Shard(0)), f"layer*.*.bn{last - 1}": Channels(Shard(0))}
        return plan | {f"layer*.*.conv{last}": Channels(Shard(1), output=Replicate()), "fc": ColwiseParallel()}
