"""YOLOv2 for PASCAL VOC (Redmon and Farhadi, 2017), written out so that the benchmark needs no model zoo. Random weights."""

import torch
from torch import nn
from torch.nn import functional

# Output channels and kernel width of each convolution; None halves the image.
TO_PASSTHROUGH = [(32, 3), None, (64, 3), None, (128, 3), (64, 1), (128, 3), None, (256, 3), (128, 1), (256, 3), None,
                  (512, 3), (256, 1), (512, 3), (256, 1), (512, 3)]
TO_ROUTE = [None, (1024, 3), (512, 1), (1024, 3), (512, 1), (1024, 3), (1024, 3), (1024, 3)]
BOXES, CLASSES = 5, 20


def convolutions(channels: int, layers: list) -> tuple[nn.Sequential, int]:
    """Convolutions with batch normalisation and leaky rectifiers; and the channels that come out."""
    built: list[nn.Module] = []
    for layer in layers:
        if layer is None:
            built.append(nn.MaxPool2d(2))
            continue
        out, width = layer
        built += [nn.Conv2d(channels, out, width, padding=width // 2, bias=False), nn.BatchNorm2d(out), nn.LeakyReLU(0.1, inplace=True)]
        channels = out
    return nn.Sequential(*built), channels


class Yolo(nn.Module):
    """The 23 convolutions, with the passthrough that sets four pixels of the finer map into channels of the coarser one."""

    def __init__(self) -> None:
        super().__init__()
        self.fine, fine = convolutions(3, TO_PASSTHROUGH)
        self.coarse, coarse = convolutions(fine, TO_ROUTE)
        self.passthrough, passed = convolutions(fine, [(64, 1)])
        self.last, last = convolutions(4 * passed + coarse, [(1024, 3)])
        self.boxes = nn.Conv2d(last, BOXES * (5 + CLASSES), 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        fine = self.fine(image)
        passed = functional.pixel_unshuffle(self.passthrough(fine), 2)
        return self.boxes(self.last(torch.cat([passed, self.coarse(fine)], dim=1)))
