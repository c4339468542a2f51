"""A network gone wrong: a flood of kernels on eight streams, that compute only (`compute`) or move memory only (`memory`).

Prints `ready`. Each line on standard input is a number of seconds; it then floods the GPU for so long and prints one JSON line with the
number of kernels that ended. Ends with its input.
"""

import json
import sys
import time
from collections.abc import Callable

import cupy

COMPUTE = r"""
extern "C" __global__ void flood(float *out, int rounds) {
    float a = threadIdx.x, b = 1.0f, c = 2.0f, d = 3.0f;
    for (int i = 0; i < rounds; i++) {
        a = fmaf(a, 1.0001f, 0.5f);
        b = fmaf(b, 1.0001f, 0.5f);
        c = fmaf(c, 1.0001f, 0.5f);
        d = fmaf(d, 1.0001f, 0.5f);
    }
    if (a + b + c + d == 12345.0f) out[0] = a;
}
"""
STREAMS, BLOCKS, THREADS, ROUNDS = 8, 132 * 8, 256, 2048
COPY_BYTES = 256 << 20
# On each stream.
KERNELS_IN_FLIGHT = 8


def flood(kind: str) -> Callable[[int], cupy.cuda.Event]:
    """A warm flood, of `compute` or `memory`: each call launches a kernel on the stream of that index and returns the event of its end."""
    kernel = cupy.RawKernel(COMPUTE, "flood")
    out = cupy.zeros(1, dtype=cupy.float32)
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(STREAMS)]
    pairs = []
    if kind == "memory":
        pairs = [(cupy.zeros(COPY_BYTES // 4, dtype=cupy.float32), cupy.empty(COPY_BYTES // 4, dtype=cupy.float32)) for _ in streams]

    def launch(index: int) -> cupy.cuda.Event:
        with streams[index]:
            if pairs:
                source, target = pairs[index]
                cupy.add(source, 1, out=target)
            else:
                kernel((BLOCKS,), (THREADS,), (out, ROUNDS))
            done = cupy.cuda.Event(block=False, disable_timing=True)
            done.record()
            return done

    for index in range(STREAMS):
        launch(index).synchronize()
    return launch


def main() -> None:
    launch = flood(sys.argv[1])
    print("ready", flush=True)
    for line in sys.stdin:
        end, count = time.monotonic() + float(line), 0
        pending: list[list] = [[] for _ in range(STREAMS)]
        while time.monotonic() < end:
            for index, queue in enumerate(pending):
                queue.append(launch(index))
                if len(queue) > KERNELS_IN_FLIGHT:
                    queue.pop(0).synchronize()
                count += 1
        for queue in pending:
            for done in queue:
                done.synchronize()
        print(json.dumps({"kernels": count}), flush=True)


if __name__ == "__main__":
    main()
