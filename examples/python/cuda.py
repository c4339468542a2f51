"""A little of the CUDA driver API through ctypes, so that the examples need nothing else.

It stands for PyTorch, CuPy or vLLM: it knows nothing of Partita.
"""

import ctypes
from typing import Any, List, Optional, Set, Tuple

# Each block stays for 20 µs, so that a full grid reaches every SM, and writes its SM.
_PTX = b"""
.version 6.0
.target sm_30
.address_size 64
.visible .entry where(.param .u64 where_out)
{
    .reg .pred %p;
    .reg .u32 %sm, %block, %thread;
    .reg .u64 %out, %start, %now, %passed, %offset;
    mov.u64 %start, %globaltimer;
    ld.param.u64 %out, [where_out];
    mov.u32 %sm, %smid;
    mov.u32 %block, %ctaid.x;
    mov.u32 %thread, %tid.x;
SPIN:
    mov.u64 %now, %globaltimer;
    sub.u64 %passed, %now, %start;
    setp.lt.u64 %p, %passed, 20000;
    @%p bra SPIN;
    setp.ne.u32 %p, %thread, 0;
    @%p bra DONE;
    mul.wide.u32 %offset, %block, 4;
    add.u64 %out, %out, %offset;
    st.global.u32 [%out], %sm;
DONE:
    ret;
}
"""
_MULTIPROCESSORS = 16
_NON_BLOCKING = 1
_THREADS = 1024
_ROUNDS = 4


class Gpu:
    """The first GPU that this process sees, with a context that is current on this thread."""

    def __init__(self) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        context, module, self._where = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        sms = ctypes.c_int()
        self._call("cuInit", 0)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self._call("cuCtxSetCurrent", context)
        self._call("cuDeviceGetAttribute", ctypes.byref(sms), _MULTIPROCESSORS, 0)
        self._call("cuModuleLoadData", ctypes.byref(module), _PTX)
        self._call("cuModuleGetFunction", ctypes.byref(self._where), module, b"where")
        self._context, self.sms = context, sms.value
        self._blocks = self.sms * 4
        self._out = self.allocate(self._blocks * 4)

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._cuda, name)(*arguments)
        if code:
            raise RuntimeError(f"{name}: CUDA error {code}")

    def enter(self) -> None:
        """Makes the context current on another thread."""
        self._call("cuCtxSetCurrent", self._context)

    def memory(self) -> Tuple[int, int]:
        """Free and total device memory, in bytes, as PyTorch and vLLM see it."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def allocate(self, size: int) -> ctypes.c_uint64:
        """Device memory of `size` bytes."""
        address = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address

    def stream(self) -> int:
        """A new stream, as `torch.cuda.Stream().cuda_stream`."""
        stream = ctypes.c_void_p()
        self._call("cuStreamCreate", ctypes.byref(stream), _NON_BLOCKING)
        return stream.value or 0

    def where(self, stream: int = 0) -> List[int]:
        """Fills the GPU with blocks and returns the SMs on which they ran."""
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(self._out))
        found = (ctypes.c_uint32 * self._blocks)()
        queue: Optional[ctypes.c_void_p] = ctypes.c_void_p(stream)
        seen: Set[int] = set()
        for _ in range(_ROUNDS):
            grid, block = (self._blocks, 1, 1), (_THREADS, 1, 1)
            self._call("cuLaunchKernel", self._where, *grid, *block, 0, queue, parameters, None)
            self._call("cuStreamSynchronize", queue)
            self._call("cuMemcpyDtoH_v2", found, self._out, ctypes.c_size_t(ctypes.sizeof(found)))
            seen.update(found)
        return sorted(seen)
