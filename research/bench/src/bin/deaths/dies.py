"""Dies with PyTorch's work on the GPU, as the caller says: dies.py WORK DEATH, like deaths.c.

`finite` is some 4 s of matrix products in four streams on one TPC, `endless` a kernel of torch that sleeps for 2**62 cycles,
`copies` 4 GiB from pinned memory. With `sudden-` before it the work begins when the program is told to die, and it dies right behind its
last launch.
"""

import ctypes
import os
import signal
import sys

import torch

work, death = sys.argv[1:]
matrix = torch.ones(2048, 2048, device="cuda")
pinned = torch.ones(64 << 20, dtype=torch.uint8, pin_memory=True)
# The library that multiplies is loaded before the time counts.
matrix @ matrix
torch.cuda.synchronize()
sudden = work.startswith("sudden-")
work = work.removeprefix("sudden-")


def wait():
    print("ready", flush=True)
    sys.stdin.readline()


if sudden:
    wait()
if work == "endless":
    torch.cuda._sleep(2**62)
elif work == "finite":
    streams = [torch.cuda.Stream() for _ in range(4)]
    for number in range(200):
        with torch.cuda.stream(streams[number % 4]):
            matrix @ matrix
            torch.cuda._sleep(4_000_000)
elif work == "copies":
    copies = torch.empty_like(pinned, device="cuda")
    for _ in range(64):
        copies.copy_(pinned, non_blocking=True)
if not sudden:
    wait()
if death == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
elif death == "segv":
    ctypes.string_at(8)
elif death == "abort":
    os.abort()
elif death == "_exit":
    os._exit(0)
elif death == "exec":
    os.execlp("sh", "sh", "-c", "echo executed; read line")
