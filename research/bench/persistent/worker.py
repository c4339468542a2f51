"""Runs kernels from their PTX and answers commands, a JSON line each. It starts no other kernel.

    check              the digest of each kernel's results
    census BLOCKS      how many blocks each SM ran
    time KERNEL COUNT  microseconds of each of COUNT launches, measured together
    clock              nanoseconds from the GPU's clock to this machine's
    spin BLOCKS NS     a launch of BLOCKS blocks of NS nanoseconds each, and its answer when `ended` is asked
    ended              the SM and the end of each block, on the GPU's clock
    wait               microseconds of a launch of nothing and a wait for it
"""

import hashlib
import json
import pathlib
import sys
import time

import cupy
import numpy

COMMON = json.loads(pathlib.Path(sys.argv[1]).read_text())
RANDOM = numpy.random.default_rng(1)


def function(ptx: str, name: str, shared: int = 0):
    """A kernel of a PTX text."""
    module = cupy.cuda.function.Module()
    module.load(ptx.encode())
    made = module.get_function(name)
    if shared > 48 << 10:
        made.max_dynamic_shared_size_bytes = shared
    return made


def floats(*shape: int, kind=numpy.float32) -> cupy.ndarray:
    return cupy.asarray(RANDOM.standard_normal(shape, dtype=numpy.float32).astype(kind))


class Kernel:
    """A kernel with arguments of a size that fills the GPU."""

    def __init__(self, made, grid, block, out, *arguments, shared: int = 0) -> None:
        self.made, self.grid, self.block, self.out, self.shared = made, grid, block, out, shared
        self.arguments = (out, *arguments) if out is not None else arguments

    def run(self) -> None:
        self.made(self.grid, self.block, self.arguments, shared_mem=self.shared)

    def digest(self) -> str:
        """The results' digest, of a launch on zeros."""
        self.out.data.memset(0, self.out.nbytes)
        self.run()
        return hashlib.sha256(self.out.get().tobytes()).hexdigest()[:16]


def kernels() -> dict[str, Kernel]:
    cuda = {name: function(COMMON["cuda"], name) for name in
            ("empty", "saxpy", "matmul", "sums", "histogram", "stencil", "bodies")}
    triton = {name: function(one["ptx"], one["entry"], one["shared"]) for name, one in COMMON["triton"].items()}
    i32 = numpy.int32
    count, side, cube, stars = 1 << 24, 2048, 256, 16384
    zeros = cupy.zeros
    made = {
        "empty": Kernel(cuda["empty"], (1,), (32,), None),
        "empty, 10^6 blocks": Kernel(cuda["empty"], (1_000_000,), (32,), None),
        "saxpy": Kernel(cuda["saxpy"], (count // 256,), (256,), zeros(count, "f4"), floats(count), floats(count), i32(count)),
        "matmul": Kernel(cuda["matmul"], (side // 16, side // 16), (16, 16), zeros((side, side), "f4"), floats(side, side),
                         floats(side, side), i32(side)),
        "sums": Kernel(cuda["sums"], (count // 1024,), (1024,), zeros(count // 1024, "f4"), floats(count)),
        "histogram": Kernel(cuda["histogram"], (4096,), (256,), zeros(256, "u4"),
                            cupy.asarray(RANDOM.integers(0, 1 << 32, count, dtype=numpy.uint32)), i32(count)),
        "stencil": Kernel(cuda["stencil"], (cube // 32, cube // 4, cube // 2), (32, 4, 2), zeros(cube**3, "f4"), floats(cube**3),
                          i32(cube)),
        "bodies": Kernel(cuda["bodies"], (stars // 256,), (256,), zeros((stars, 4), "f4"), floats(stars, 4), i32(stars)),
    }
    rows, columns = 16384, 1000
    sizes = {"softmax": ((rows,), zeros((rows, columns), "f4"), (floats(rows, columns), i32(columns))),
             "layer_norm": ((rows,), zeros((rows, columns), "f4"), (floats(rows, columns), i32(columns))),
             "product": ((side // 64, side // 64), zeros((side, side), "f4"),
                         (floats(side, side, kind=numpy.float16), floats(side, side, kind=numpy.float16), i32(side)))}
    for name, (grid, out, arguments) in sizes.items():
        one = COMMON["triton"][name]
        made[f"triton {name}"] = Kernel(triton[name], grid, (one["threads"],), out, *arguments, *[numpy.uint64(0)] * one["scratch"],
                                        shared=one["shared"])
    return made


def main() -> None:
    all_kernels = kernels()
    census, spin, clock = (function(COMMON["cuda"], name) for name in ("census", "spin", "clock_now"))
    running: tuple = ()
    for kernel in all_kernels.values():
        kernel.run()
    cupy.cuda.Device().synchronize()

    def timed(name: str, count: int) -> float:
        begin, end = cupy.cuda.Event(), cupy.cuda.Event()
        begin.record()
        for _ in range(count):
            all_kernels[name].run()
        end.record()
        end.synchronize()
        return 1e3 * cupy.cuda.get_elapsed_time(begin, end) / count

    print("ready", flush=True)
    for line in sys.stdin:
        what, *words = json.loads(line)
        if what == "check":
            answer = {name: kernel.digest() for name, kernel in all_kernels.items() if kernel.out is not None}
        elif what == "census":
            counts = cupy.zeros(1024, "u4")
            census((words[0],), (32,), (counts,))
            answer = {sm: count for sm, count in enumerate(counts.get().tolist()) if count}
        elif what == "time":
            answer = timed(*words)
        elif what == "clock":
            now, pairs = cupy.zeros(1, "u8"), []
            for _ in range(20):
                before = time.time_ns()
                clock((1,), (1,), (now,))
                cupy.cuda.Device().synchronize()
                after = time.time_ns()
                pairs.append((after - before, (before + after) // 2 - int(now.get()[0])))
            answer = min(pairs)[1]
        elif what == "spin":
            blocks, ns = words
            running = cupy.zeros(blocks, "u4"), cupy.zeros(blocks, "u8")
            cupy.cuda.Device().synchronize()
            spin((blocks,), (1024,), (*running, numpy.uint32(ns)))
            answer = time.time_ns()
        elif what == "ended":
            answer = [each.get().tolist() for each in running]
        elif what == "wait":
            begin = time.perf_counter()
            all_kernels["empty"].run()
            cupy.cuda.Device().synchronize()
            answer = 1e6 * (time.perf_counter() - begin)
        else:
            raise SystemExit(f"unknown command {what}")
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
