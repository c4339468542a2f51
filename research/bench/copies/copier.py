"""Copies between pinned memory and the GPU: `victim` makes small ones with a pause between, `flood` large ones all the time.

    copier.py victim KIB            a copy to the GPU, a kernel and a copy back, each time
    copier.py flood up|down STREAMS 256 MiB at a time, to the GPU or from it

Prints `ready` when warm. Each line on standard input is a number of seconds; it then copies for so long and prints one JSON line. Ends with
its input.
"""

import json
import sys
import time
from collections.abc import Callable

import torch

FLOOD_BYTES = 256 << 20
# Of the flood, for each stream.
COPIES_IN_FLIGHT = 2


def pair(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty(size, dtype=torch.uint8, pin_memory=True), torch.empty(size, dtype=torch.uint8, device="cuda")


def victim(size: int) -> Callable[[float], dict]:
    """Measures each round trip, in milliseconds."""
    (there, on_gpu), (back, _) = pair(size), pair(size)

    def trip() -> None:
        on_gpu.copy_(there, non_blocking=True)
        on_gpu.add_(1)
        back.copy_(on_gpu, non_blocking=True)
        torch.cuda.synchronize()

    for _ in range(50):
        trip()

    def work(seconds: float) -> dict:
        latencies_ms = []
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            before = time.perf_counter()
            trip()
            latencies_ms.append(1e3 * (time.perf_counter() - before))
            time.sleep(0.001)
        return {"latencies_ms": latencies_ms}

    return work


def flood(up: bool, streams: int) -> Callable[[float], dict]:
    """Measures what it copies in a second, in GB."""
    lanes = [(torch.cuda.Stream(), *pair(FLOOD_BYTES)) for _ in range(streams)]

    def work(seconds: float) -> dict:
        flying: list[torch.cuda.Event] = []
        copies = 0
        before = time.monotonic()
        while time.monotonic() < before + seconds:
            stream, host, on_gpu = lanes[copies % streams]
            if len(flying) == COPIES_IN_FLIGHT * streams:
                flying.pop(0).synchronize()
            with torch.cuda.stream(stream):
                (on_gpu if up else host).copy_(host if up else on_gpu, non_blocking=True)
                flying.append(torch.cuda.Event())
                flying[-1].record()
            copies += 1
        torch.cuda.synchronize()
        return {"gb_per_s": copies * FLOOD_BYTES / 1e9 / (time.monotonic() - before)}

    work(0.1)
    return work


def main() -> None:
    work = victim(int(sys.argv[2]) << 10) if sys.argv[1] == "victim" else flood(sys.argv[2] == "up", int(sys.argv[3]))
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(work(float(line))), flush=True)


if __name__ == "__main__":
    main()
