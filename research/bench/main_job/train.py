"""The neighbour that trains: ResNet-50, bf16 autocast, batch 128, SGD with momentum, random images.

Prints `ready` when warm, then trains until standard input closes, and prints one JSON line with the time at which each step ended.
"""

import argparse
import json
import select
import sys
import time
from collections.abc import Callable

import torch

from model import resnet50

BATCH = 128
# Two steps in flight keep the GPU busy without queueing for ever.
STEPS_IN_FLIGHT = 2


def closed() -> bool:
    """Whether standard input has ended."""
    return bool(select.select([sys.stdin], [], [], 0)[0]) and sys.stdin.readline() == ""


def trainer(batch: int) -> Callable[[], torch.cuda.Event]:
    """A warm network: each call enqueues a training step and returns the event of its end."""
    torch.manual_seed(1)
    device = torch.device("cuda")
    model = resnet50().to(device, memory_format=torch.channels_last).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images = torch.randn(batch, 3, 224, 224, device=device).to(memory_format=torch.channels_last)
    labels = torch.randint(0, 1000, (batch,), device=device)

    def step() -> torch.cuda.Event:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        done = torch.cuda.Event()
        done.record()
        return done

    for _ in range(10):
        step()
    torch.cuda.synchronize()
    return step


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=BATCH)
    options = parser.parse_args()

    step = trainer(options.batch)
    print("ready", flush=True)
    ends = []
    pending: list[torch.cuda.Event] = []
    while not closed():
        pending.append(step())
        if len(pending) > STEPS_IN_FLIGHT:
            pending.pop(0).synchronize()
            ends.append(time.monotonic())
    print(json.dumps({"ends": ends, "per_step": options.batch}), flush=True)


if __name__ == "__main__":
    main()
