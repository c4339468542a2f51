"""A neighbour that takes all of the GPU that it can get: `train` (ResNet-50), `compute` or `memory` (a flood on eight streams).

Prints `ready` when warm. A line on standard input begins its work and the next one ends it; then it prints one JSON line with the time
at which each step ended, on the monotonic clock, and how much a step is (images, or kernels). Ends with its input.
"""

import collections
import itertools
import json
import pathlib
import select
import sys
import time
from collections.abc import Callable

BENCH = pathlib.Path(__file__).resolve().parent.parent


def train() -> tuple[Callable, int, int]:
    """Enqueues a step, its images, and the steps to have in flight."""
    sys.path.insert(0, str(BENCH / "main_job"))
    from train import BATCH, STEPS_IN_FLIGHT, trainer

    return trainer(BATCH), BATCH, STEPS_IN_FLIGHT


def flood(kind: str) -> tuple[Callable, int, int]:
    """The same of a flood; a step is a kernel, on the streams in turn."""
    sys.path.insert(0, str(BENCH / "cnn"))
    import faulty

    launch, streams = faulty.flood(kind), itertools.cycle(range(faulty.STREAMS))
    return lambda: launch(next(streams)), 1, faulty.STREAMS * faulty.KERNELS_IN_FLIGHT


def main() -> None:
    kind = sys.argv[1]
    step, per_step, in_flight = train() if kind == "train" else flood(kind)
    print("ready", flush=True)
    while sys.stdin.readline():
        ends: list[float] = []
        pending: collections.deque = collections.deque()
        while not select.select([sys.stdin], [], [], 0)[0]:
            pending.append(step())
            if len(pending) > in_flight:
                pending.popleft().synchronize()
                ends.append(time.monotonic())
        sys.stdin.readline()
        for done in pending:
            done.synchronize()
        print(json.dumps({"ends": ends, "per_step": per_step}), flush=True)


if __name__ == "__main__":
    main()
