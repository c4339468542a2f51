"""A program that computes on the GPU and writes down when: what `recovery.py` runs as tenants. It knows nothing of Partita.

    client.py FILE [--device INDEX] [--with driver|torch]

A line is appended to FILE for each thing that happens, with the time on the monotonic clock in nanoseconds: `start` once the program
runs, `done` after each piece of work that the GPU has completed, `fault` before it writes where it has no memory, `error` with the
words of the failure. Prints `ready` after its first work. A line `fault` on standard input provokes the fault; it leaves with its input.

The work is a kernel of about a millisecond through the driver's interface, or with `--with torch` a matrix product in PyTorch.
"""

import argparse
import ctypes
import os
import pathlib
import select
import sys
import time
from collections.abc import Callable

KERNELS = pathlib.Path(__file__).resolve().parents[3] / "crates" / "partita-abi" / "src" / "kernels.ptx"
SPIN_NS = 1_000_000
BLOCKS, THREADS = 64, 128
# An address that no allocation has.
NO_MEMORY = 4096
# A kernel's words about itself, for each block.
RECORD_BYTES = 32
# The exit code after an error of the GPU.
FAILED = 91


class CudaError(Exception):
    """A call that did not return 0."""


class Driver:
    """The census kernel of Partita's own module, by way of libcuda."""

    def __init__(self, device: int) -> None:
        self.cuda = ctypes.CDLL("libcuda.so.1")
        context, module, self.kernel, memory = (ctypes.c_void_p() for _ in range(4))
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)
        self.call("cuModuleLoadData", ctypes.byref(module), KERNELS.read_bytes() + b"\0")
        self.call("cuModuleGetFunction", ctypes.byref(self.kernel), module, b"partita_census")
        self.call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(BLOCKS * RECORD_BYTES))
        self.memory = memory.value

    def call(self, name: str, *arguments: object) -> None:
        if code := getattr(self.cuda, name)(*arguments):
            raise CudaError(f"{name}: error {code}")

    def work(self, address: int | None = None) -> None:
        values = [ctypes.c_uint64(address or self.memory), ctypes.c_uint64(SPIN_NS)]
        pointers = (ctypes.c_void_p * 2)(*(ctypes.addressof(value) for value in values))
        self.call("cuLaunchKernel", self.kernel, BLOCKS, 1, 1, THREADS, 1, 1, 0, None, pointers, None)
        self.call("cuCtxSynchronize")

    def fault(self) -> None:
        self.work(NO_MEMORY)


def torch_work(device: int) -> Callable[[], None]:
    """A product of two matrices that takes about a tenth of a millisecond on a whole H200."""
    import torch

    matrix = torch.randn(2048, 2048, device=f"cuda:{device}", dtype=torch.half)

    def work() -> None:
        try:
            matrix @ matrix
            torch.cuda.synchronize()
        except RuntimeError as error:
            raise CudaError(str(error).splitlines()[0]) from None

    return work


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--with", dest="way", choices=("driver", "torch"), default="driver")
    options = parser.parse_args()
    # Whole lines, though the program is another one after a restart.
    file = os.open(options.file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(what: str, words: str = "") -> None:
        os.write(file, f"{what} {time.monotonic_ns()} {words}".strip().encode() + b"\n")

    note("start")
    try:
        driver = Driver(options.device) if options.way == "driver" else None
        work = driver.work if driver else torch_work(options.device)
        is_new = True
        while True:
            work()
            note("done")
            if is_new:
                print("ready", flush=True)
                is_new = False
            if select.select([sys.stdin], [], [], 0)[0]:
                if sys.stdin.readline().strip() != "fault" or not driver:
                    return
                note("fault")
                driver.fault()
                note("error", "a write to no memory was no error")
                sys.exit(1)
    except CudaError as error:
        note("error", str(error))
        print(f"{options.file}: {error}", file=sys.stderr)
        sys.exit(FAILED)


if __name__ == "__main__":
    main()
