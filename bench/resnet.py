"""A training step of ResNet-18 on images of 32 x 32, batch 64: dtorch beside PyTorch, in turns. Options: turns.py."""

import turns


def cases():
    from common import torch

    nn, F = torch.nn, torch.nn.functional

    class Block(nn.Module):
        def __init__(self, c_in, width, stride):
            super().__init__()
            self.conv1, self.bn1 = nn.Conv2d(c_in, width, 3, stride, padding=1, bias=False), nn.BatchNorm2d(width)
            self.conv2, self.bn2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
            same = stride == 1 and c_in == width
            self.shortcut = None if same else nn.Sequential(nn.Conv2d(c_in, width, 1, stride, bias=False), nn.BatchNorm2d(width))

        def forward(self, x):
            y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
            return F.relu(y + (x if self.shortcut is None else self.shortcut(x)))

    def resnet18():
        layers, c = [nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU()], 64
        for width, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            layers += [Block(c, width, stride), Block(width, width, 1)]
            c = width
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))

    torch.manual_seed(0)
    model = resnet18()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    x, y = torch.randn(64, 3, 32, 32), torch.randint(0, 10, (64,))

    def step():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    def infer():
        with torch.no_grad():
            return model.eval()(x)

    def train():
        model.train()
        return step()

    forward = 2 * 64 * 0.5564e9
    return {"ResNet-18, batch 64, training step": (train, 3 * forward), "ResNet-18, batch 64, inference": (infer, forward)}


turns.main(cases, 3)
