"""Kernels in Triton, compiled to PTX for sm_80: for sm_90 its products use wgmma, which persistent blocks refuse."""

import re

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def softmax(out, x, columns, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    values = tl.load(x + row * columns + at, mask=at < columns, other=-float("inf"))
    powers = tl.exp(values - tl.max(values, axis=0))
    tl.store(out + row * columns + at, powers / tl.sum(powers, axis=0), mask=at < columns)


@triton.jit
def layer_norm(out, x, columns, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    values = tl.load(x + row * columns + at, mask=at < columns, other=0.0)
    mean = tl.sum(values, axis=0) / columns
    centred = tl.where(at < columns, values - mean, 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, axis=0) / columns + 1e-5)
    tl.store(out + row * columns + at, centred * scale, mask=at < columns)


@triton.jit
def product(out, a, b, side, BLOCK: tl.constexpr):
    rows = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    sums = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for step in range(0, side, 32):
        inner = step + tl.arange(0, 32)
        left = tl.load(a + rows[:, None] * side + inner[None, :])
        right = tl.load(b + inner[:, None] * side + columns[None, :])
        sums = tl.dot(left, right, sums)
    tl.store(out + rows[:, None] * side + columns[None, :], sums)


KERNELS = {"softmax": (softmax, "fp32", 1024), "layer_norm": (layer_norm, "fp32", 1024), "product": (product, "fp16", 64)}


def compiled(name: str) -> dict:
    """A kernel's PTX, its name there, threads, bytes of shared memory and number of pointers behind its arguments."""
    kernel, kind, block = KERNELS[name]
    names = kernel.arg_names[:-1]
    signature = {each: f"*{kind}" for each in names} | {"out": "*fp32", names[-1]: "i32", "BLOCK": "constexpr"}
    made = triton.compile(ASTSource(kernel, signature, constexprs={"BLOCK": block}), target=GPUTarget("cuda", 80, 32))
    ptx = made.asm["ptx"]
    entry = ptx[ptx.index(".entry"):]
    parameters = len(re.findall(r"\.param", entry[:entry.index(")")]))
    return {"ptx": ptx, "entry": made.metadata.name, "threads": 32 * made.metadata.num_warps, "shared": made.metadata.shared,
            "scratch": parameters - len(names)}
