"""NVIDIA's driver through ctypes: the functions that the launcher calls, and graphs of launches."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from functools import cache, cached_property
from typing import Any

from pullback.core.errors import DeviceError

__all__ = ["ENTRIES", "LIBRARIES", "LOCKED", "Driver", "is_found", "library"]

LIBRARIES = ("nvcuda.dll",) if sys.platform == "win32" else ("libcuda.so.1", "libcuda.so")
# What the launcher calls, in the order in which it finds them.
ENTRIES = (
    "cuLaunchKernel",
    "cuMemcpyDtoHAsync_v2",
    "cuStreamQuery",
    "cuCtxGetCurrent",
    "cuCtxSetCurrent",
    "cuGraphAddKernelNode_v2",
    "cuGraphExecKernelNodeSetParams_v2",
    "cuGraphLaunch",
    "cuLaunchKernelEx",
    "cuMemsetD8Async",
    "cuGraphKernelNodeSetAttribute",
)
LOCKED = 1 << 16  # bytes of page-locked memory in which the launcher reads flags
MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, by its number in cuda.h
OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY as cuda.h numbers results of calls
# What to do about an error of the driver; after those of kernels a context is of no use.
_LOST = " The GPU can't be used by this process any more. Start the program anew."
_HINTS = {
    3: ' CUDA does not survive a fork. Start processes by multiprocessing.get_context("spawn").',
    **dict.fromkeys((700, 702, 710, 714, 715, 716, 717, 718, 719), _LOST),
}
# The same of drivers from 12.4 on, whose graphs have loops and choices.
CONDITIONS = ("cuGraphConditionalHandleCreate", "cuGraphAddNode_v2")
_Handle, _Word = ctypes.c_void_p, ctypes.c_uint64
# The arguments of what is called for every copy: integers are taken as they are.
_TYPES = {
    "cuMemcpyHtoDAsync_v2": (_Word, _Handle, ctypes.c_size_t, _Handle),
    "cuMemcpyDtoHAsync_v2": (_Handle, _Word, ctypes.c_size_t, _Handle),
    "cuMemsetD8Async": (_Word, ctypes.c_ubyte, ctypes.c_size_t, _Handle),
}


def is_found() -> bool:
    """Whether there is a driver."""
    for name in LIBRARIES:
        try:
            ctypes.CDLL(name)
        except OSError:
            continue
        return True
    return False


@cache
def library() -> Any:
    """The driver's library."""
    for name in LIBRARIES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise DeviceError(f"cuda: NVIDIA's driver ({', '.join(LIBRARIES)}) was not found.")


class Driver:
    """The driver's functions; errors become exceptions."""

    def __init__(self, functions: Any):
        self._functions = functions
        for name, types in _TYPES.items():
            getattr(functions, name).argtypes = types
        addresses = [ctypes.cast(getattr(functions, n), _Handle).value for n in ENTRIES]
        self.has_conditions = all(hasattr(functions, n) for n in CONDITIONS)
        for n in CONDITIONS if self.has_conditions else ():
            addresses.append(ctypes.cast(getattr(functions, n), _Handle).value)
        self._entries = (_Handle * (len(ENTRIES) + len(CONDITIONS) + 1))(*addresses)
        self.entries = ctypes.addressof(self._entries)

    def use_locked(self, address: int) -> None:
        """At an address are LOCKED bytes of page-locked memory, where the launcher reads flags."""
        self._entries[len(ENTRIES) + len(CONDITIONS)] = address

    def check(self, status: int, what: str) -> None:
        """Raise the driver's error, if there is one."""
        if status:
            name = ctypes.c_char_p()
            self._functions.cuGetErrorString(status, ctypes.byref(name))
            said = (name.value or b"an unknown error").decode()
            text = f"cuda: {what} failed, got {said} ({status}).{_HINTS.get(status, '')}"
            raise MemoryError(text) if status == OUT_OF_MEMORY else DeviceError(text)

    def context(self) -> int:
        """The current context."""
        found = _Handle()
        self.check(self._functions.cuCtxGetCurrent(ctypes.byref(found)), "cuCtxGetCurrent")
        return found.value or 0

    def primary_context(self, index: int) -> int:
        """The context of a GPU that all libraries of a process share."""
        device, found = ctypes.c_int(), _Handle()
        self.check(self._functions.cuInit(0), "cuInit")
        self.check(self._functions.cuDeviceGet(ctypes.byref(device), index), "cuDeviceGet")
        status = self._functions.cuDevicePrimaryCtxRetain(ctypes.byref(found), device.value)
        self.check(status, "cuDevicePrimaryCtxRetain")
        assert found.value is not None
        return found.value

    def enter(self, context: int) -> None:
        """Make a context the current one of this thread; 0 is none."""
        self.check(self._functions.cuCtxSetCurrent(_Handle(context)), "cuCtxSetCurrent")

    def finish(self) -> None:
        """Return when all work of the current context is done."""
        self.check(self._functions.cuCtxSynchronize(), "cuCtxSynchronize")

    def allow_shared(self, function: int, nbytes: int) -> None:
        """Let launches of a kernel give so many bytes of shared memory to a thread block."""
        set_attribute = self._functions.cuFuncSetAttribute
        status = set_attribute(_Handle(function), MAX_DYNAMIC_SHARED, nbytes)
        self.check(status, "cuFuncSetAttribute")

    def upload(self, to: int, source: int, nbytes: int, stream: int) -> None:
        """Copy bytes of the host to the device."""
        status = self._functions.cuMemcpyHtoDAsync_v2(to, source, nbytes, stream)
        self.check(status, "a copy to the device")

    def download(self, to: int, source: int, nbytes: int, stream: int) -> None:
        """Copy bytes of the device to the host."""
        status = self._functions.cuMemcpyDtoHAsync_v2(to, source, nbytes, stream)
        self.check(status, "a copy from the device")

    def clear(self, address: int, nbytes: int, stream: int) -> None:
        """Set bytes of the device to 0."""
        status = self._functions.cuMemsetD8Async(address, 0, nbytes, stream)
        self.check(status, "cuMemsetD8Async")

    def new_graph(self) -> int:
        """A graph without nodes."""
        graph = _Handle()
        self.check(self._functions.cuGraphCreate(ctypes.byref(graph), 0), "cuGraphCreate")
        assert graph.value is not None
        return graph.value

    def executable(self, graph: int) -> int:
        """A graph that can be launched."""
        made = _Handle()
        instantiate = self._functions.cuGraphInstantiateWithFlags
        status = instantiate(ctypes.byref(made), _Handle(graph), ctypes.c_uint64(0))
        self.check(status, "cuGraphInstantiateWithFlags")
        assert made.value is not None
        return made.value

    @cached_property
    def has_maps(self) -> bool:
        """Whether it makes maps for the copy engine that begin with the address of an array."""
        if not hasattr(self._functions, "cuTensorMapEncodeTiled"):
            return False
        starts = 1 << 40, 3 << 40
        made = [self._encoded(start, 2, (64, 64), (128,), (64, 64)) for start in starts]
        first = [int.from_bytes(words[:8], "little") for words in made]
        return tuple(first) == starts and made[0][8:] == made[1][8:]

    def tensor_map(
        self, itemsize: int, sides: Sequence[int], steps: Sequence[int], box: tuple[int, int]
    ) -> bytes:
        """What follows the address in the map of an array: `steps` are bytes from one to the next
        along all `sides` but the first, along which elements lie side by side.

        A box in shared memory has rows of 128 bytes, of which pieces of 16 are exchanged.
        """
        return self._encoded(1 << 40, itemsize, sides, steps, box)[8:]

    def _encoded(
        self,
        start: int,
        itemsize: int,
        sides: Sequence[int],
        steps: Sequence[int],
        box: tuple[int, int],
    ) -> bytes:
        kind, rank = {2: 1, 4: 2}[itemsize], len(sides)  # CU_TENSOR_MAP_DATA_TYPE_UINT16, _UINT32
        raw = ctypes.create_string_buffer(128 + 64)
        at = ctypes.addressof(raw) + -ctypes.addressof(raw) % 64
        ones = (1,) * rank
        # Bytes that come to L2 at once: 256, or 128 where rows begin within 128 of them, which
        # takes a tenth less time for rows of 3000 numbers of 16 bits.
        to_l2 = 3 if all(s % 128 == 0 for s in steps) else 2
        status = self._functions.cuTensorMapEncodeTiled(
            _Handle(at), kind, rank, _Handle(start),
            (ctypes.c_uint64 * rank)(*sides), (ctypes.c_uint64 * (rank - 1))(*steps),
            (ctypes.c_uint32 * rank)(*box, *ones[2:]), (ctypes.c_uint32 * rank)(*ones),
            0, 3, to_l2, 0,  # as they lie, exchange over 128 bytes, zeros outside
        )  # fmt: skip
        self.check(status, "cuTensorMapEncodeTiled")
        return ctypes.string_at(at, 128)

    def forget_graph(self, state: ctypes.Array[ctypes.c_int64]) -> None:
        """Free a graph and what was made of it; the device may still be running it."""
        graph, executable = state[0], state[1]
        if executable:
            self._functions.cuGraphExecDestroy(_Handle(executable))
        self._functions.cuGraphDestroy(_Handle(graph))
