"""A PyTorch program that knows nothing of partitions: matrix products, and a census of the SMs that its blocks run on.

Prints a JSON line each round: the time, TFLOP/s of fp16 products of 8192 x 8192, and the SMs of the census.
"""

import argparse
import json
import time

import cupy
import torch

CENSUS = cupy.RawKernel(r"""
extern "C" __global__ void census(unsigned *sms) {
    unsigned sm;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    long long start = clock64();
    while (clock64() - start < 40000) { }
    if (threadIdx.x == 0) sms[blockIdx.x] = sm;
}
""", "census")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=60)
    options = parser.parse_args()
    matrix = torch.randn(8192, 8192, device="cuda", dtype=torch.half)
    sms = cupy.zeros(132 * 8, dtype=cupy.uint32)
    for _ in range(5):
        product = matrix @ matrix
    torch.cuda.synchronize()
    for _ in range(options.rounds):
        CENSUS((sms.size,), (1024,), (sms,))
        seen = sorted(set(sms.get().tolist()))
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(20):
            product = matrix @ matrix  # noqa: F841
        torch.cuda.synchronize()
        rate = 20 * 2 * 8192**3 / (time.perf_counter() - start) / 1e12
        print(json.dumps({"at": time.monotonic(), "tflops": rate, "sms": seen}), flush=True)


if __name__ == "__main__":
    main()
