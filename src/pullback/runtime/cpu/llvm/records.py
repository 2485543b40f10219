"""The params of a kernel by name: the host packs what the kernel unpacks, by one list of names."""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter
from typing import TypeAlias

from pullback.runtime.cpu.llvm.builder import Code
from pullback.runtime.cpu.llvm.values import I64, PTR, Value

__all__ = ["Record", "Values"]

Values: TypeAlias = Mapping[str, Value]  # what a kernel has unpacked


class Record:
    """Names of pointers, which are passed by their slots, then of int64 numbers."""

    def __init__(self, pointers: str, numbers: str):
        self._pointers, self._numbers = pointers.split(), numbers.split()
        self._in_order = itemgetter(*self._pointers, *self._numbers)
        self._count = len(self._pointers) + len(self._numbers)

    def packed(self, **values: int) -> tuple[int, ...]:
        """The params of a stage; all have to be given, and no others."""
        assert len(values) == self._count, values.keys()
        return self._in_order(values)

    def unpacked(self, code: Code) -> Values:
        """The pointers and numbers of a stage kernel."""
        params, ptrs = code.args[:2]
        found = {
            name: code.load(ptrs, code.load(params, k, I64), PTR)
            for k, name in enumerate(self._pointers)
        }
        for k, name in enumerate(self._numbers, len(self._pointers)):
            found[name] = code.load(params, k, I64)
        return found
