"""The neighbour that works without a pause.

--model train: trains ResNet-50, bf16 autocast, batch 128, SGD with momentum, random images. prefill: reads 4 texts of 2,048 tokens
with a decoder of Llama's shape. diffusion: denoises 4 latents of 64 x 64.

Prints `ready` when warm, then works until standard input closes, and prints one JSON line with the time at which each step ended.
"""

import argparse
import json
import select
import sys
import time
from collections.abc import Callable

import torch

from model import Decoder, Denoiser, resnet50

BATCH = 128
# Texts and tokens of each, for prefill, and images, for diffusion.
TEXTS, TOKENS, LATENTS = 4, 2048, 4
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

    return warm(step)


def warm(step: Callable[[], torch.cuda.Event]) -> Callable[[], torch.cuda.Event]:
    """The same step, after ten of it."""
    for _ in range(10):
        step()
    torch.cuda.synchronize()
    return step


def reader(run: Callable[[], torch.Tensor]) -> Callable[[], torch.cuda.Event]:
    """A call that enqueues a step of inference and returns the event of its end."""

    def step() -> torch.cuda.Event:
        with torch.inference_mode():
            run()
        done = torch.cuda.Event()
        done.record()
        return done

    return warm(step)


def prefill() -> Callable[[], torch.cuda.Event]:
    """Reads texts."""
    with torch.device("cuda"):
        model = Decoder().to(torch.bfloat16).eval()
    tokens = torch.randint(0, 32000, (TEXTS, TOKENS), device="cuda")
    return reader(lambda: model(tokens))


def diffusion() -> Callable[[], torch.cuda.Event]:
    """Denoises latents."""
    model = Denoiser().to("cuda", torch.half, memory_format=torch.channels_last).eval()
    latents = torch.randn(LATENTS, 4, 64, 64, device="cuda", dtype=torch.half).to(memory_format=torch.channels_last)
    return reader(lambda: model(latents))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=["train", "prefill", "diffusion"], default="train")
    parser.add_argument("--batch", type=int, default=BATCH)
    options = parser.parse_args()

    steps = {"train": (lambda: trainer(options.batch), options.batch), "prefill": (prefill, TEXTS * TOKENS),
             "diffusion": (diffusion, LATENTS)}
    make, per_step = steps[options.model]
    step = make()
    print("ready", flush=True)
    ends = []
    pending: list[torch.cuda.Event] = []
    while not closed():
        pending.append(step())
        if len(pending) > STEPS_IN_FLIGHT:
            pending.pop(0).synchronize()
            ends.append(time.monotonic())
    print(json.dumps({"ends": ends, "per_step": per_step}), flush=True)


if __name__ == "__main__":
    main()
