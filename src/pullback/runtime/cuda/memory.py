"""Memory of a GPU for buffers: small blocks are kept in lists, by their size and stream.

A block that is given back is used again in the order of its stream, so nobody waits for the device.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import lru_cache
from typing import Any

__all__ = ["Buffer", "Pool", "block_bytes"]

# Larger blocks come from CuPy's pool, which takes about a microsecond; their kernels take longer.
LARGE = 1 << 20  # bytes up to which free blocks are kept here
LEAST = 512  # bytes of the smallest block, at a multiple of which all blocks start


class Buffer:
    """Memory of a GPU; `owner` is what keeps it alive."""

    __slots__ = ("__weakref__", "address", "nbytes", "owner")

    def __init__(self, address: int, nbytes: int, owner: Any):
        self.address, self.nbytes, self.owner = address, nbytes, owner


class _Block(Buffer):
    """A block of a list, which is its owner."""

    __slots__ = ()

    def __del__(self):
        self.owner.append(self.address)


@lru_cache(4096)
def block_bytes(nbytes: int) -> int:
    """The size of a block of so many bytes at least: one of four between powers of two."""
    step = max(LEAST, 1 << max(0, (nbytes - 1).bit_length() - 3))
    return max(LEAST, -(-nbytes // step) * step)


class Pool:
    """`allocate(nbytes, stream)` gives memory whose `ptr` is its address, and which it owns."""

    def __init__(self, allocate: Callable[[int, int], Any]):
        self._allocate = allocate
        self._free: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        self._kept: dict[int, Any] = {}  # the memory of blocks, by address

    def maker(self, nbytes: int) -> Callable[[int], Buffer]:
        """A function of a stream that gives new buffers of so many bytes."""
        if nbytes == 0:
            return lambda stream: Buffer(0, 0, None)
        if nbytes > LARGE:
            return lambda stream: self._large(nbytes, stream)
        size, lists, more = block_bytes(nbytes), self._free, self._more

        def make(stream: int) -> Buffer:
            free = lists[stream, size]
            try:
                address = free.pop()
            except IndexError:
                address = more(size, stream)
            return _Block(address, nbytes, free)

        return make

    def empty(self, nbytes: int, stream: int) -> Buffer:
        """A new buffer."""
        return self.maker(nbytes)(stream)

    def trim(self) -> None:
        """Give back the blocks that nobody has."""
        for free in [*self._free.values()]:
            while free:
                try:
                    self._kept.pop(free.pop(), None)
                except IndexError:  # another thread took the last one
                    break

    def _large(self, nbytes: int, stream: int) -> Buffer:
        memory = self._allocate(nbytes, stream)
        return Buffer(memory.ptr, nbytes, memory)

    def _more(self, nbytes: int, stream: int) -> int:
        memory = self._allocate(nbytes, stream)
        self._kept[memory.ptr] = memory
        return memory.ptr
