"""The neighbour that trains: ResNet-50, bf16 autocast, batch 128, SGD with momentum, random images.

Prints `ready` when warm, then trains until standard input closes, and prints one JSON line with the time at which each step ended.
"""

import argparse
import json
import select
import sys
import time

import torch

from model import resnet50


def closed() -> bool:
    """Whether standard input has ended."""
    return bool(select.select([sys.stdin], [], [], 0)[0]) and sys.stdin.readline() == ""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=128)
    options = parser.parse_args()

    torch.manual_seed(1)
    device = torch.device("cuda")
    model = resnet50().to(device, memory_format=torch.channels_last).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images = torch.randn(options.batch, 3, 224, 224, device=device).to(memory_format=torch.channels_last)
    labels = torch.randint(0, 1000, (options.batch,), device=device)

    def step() -> None:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    for _ in range(10):
        step()
    torch.cuda.synchronize()
    print("ready", flush=True)
    ends = []
    pending: list[torch.cuda.Event] = []
    while not closed():
        step()
        done = torch.cuda.Event()
        done.record()
        pending.append(done)
        # Two steps in flight keep the GPU busy without queueing for ever.
        if len(pending) > 2:
            pending.pop(0).synchronize()
            ends.append(time.monotonic())
    print(json.dumps({"ends": ends, "per_step": options.batch}), flush=True)


if __name__ == "__main__":
    main()
