"""Programs on disk: their words, with the places of kernels in them named instead of addressed.

Whoever can write such a file can run code, as with machine code: it is read from a folder that only
this user can write to, with a digest. All the same nothing here trusts its contents to be what a
program needs to be parsed; they are as good as the words that are in it.
"""

from __future__ import annotations

import dataclasses
import json
import operator
import sys
from array import array
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any, SupportsIndex

import numpy as np

from pullback.compile.program.stages import Program
from pullback.runtime.code_cache import CodeCache, cache_directory
from pullback.runtime.cpu import native
from pullback.runtime.cpu.llvm import jit
from pullback.runtime.cpu.native import stages
from pullback.runtime.cpu.native.tables import NumberTable

__all__ = ["Programs"]

_HEAD = Struct("<QQQ")  # bytes of the names, kernels in words, words
_CORE = {"run_loop": native.LOOP, "run_branch": native.BRANCH, "run_rows": native.ROWS,
         "run_parts": native.PARTS}  # fmt: skip
_CORE_KEY = native.LOOP.origin.key
MOST_TABLES = 1 << 20  # bytes of tables of numbers in a file: those of long transforms are larger
# What may be an address: no size, stride or number of a kernel is as large as that.
_ADDRESSES = (1 << 40, 1 << 47)


class _NamedCode:
    """The code that a program runs, and what that calls, each after what it calls."""

    def __init__(self):
        self.modules: list[list[Any]] = []  # key, symbols, imports, what others import of it
        self.tables: list[bytes] = []
        self.names: dict[tuple[str, str], int] = {}  # of functions, by key and symbol
        self._known: dict[str, list[Any]] = {}
        self._tables: dict[int, int] = {}

    def number(self, word: SupportsIndex) -> int | None:
        """The number of the function, or the table, at an address; None if it can't be found again.

        Tables have negative numbers.
        """
        if isinstance(word, NumberTable):
            if id(word) not in self._tables:
                self.tables.append(word.contents)
                self._tables[id(word)] = -len(self.tables)
            return self._tables[id(word)]
        found = jit.origin(word)
        if found is None:
            return None
        origin, name = found
        if origin.key == _CORE_KEY and name not in _CORE:
            return None
        if origin.key != _CORE_KEY and self._module(origin) is None:
            return None
        return self.names.setdefault((origin.key, name), len(self.names))

    def _module(self, origin: jit.ObjectFile) -> list[Any] | None:
        if origin.key in self._known:
            return self._known[origin.key]
        for name in origin.imports:
            address = jit.symbol(name)
            found = None if address is None else jit.origin(address)
            if found is None or found[0].key == _CORE_KEY:
                continue  # a later process has it too, or cannot run this
            module = self._module(found[0])
            if module is None:
                return None
            if [found[1], name] not in module[3]:
                module[3].append([found[1], name])
        module = [origin.key, origin.symbols, origin.imports, []]
        self._known[origin.key] = module
        self.modules.append(module)
        return module

    def text(self) -> bytes:
        names = [[None if key == _CORE_KEY else key, name] for key, name in self.names]
        sizes = [len(t) for t in self.tables]
        return json.dumps({"modules": self.modules, "names": names, "tables": sizes}).encode()


class Programs:
    """The programs of the CPU on disk."""

    def __init__(self, plan: Callable[..., Any]):
        self._files = CodeCache("cpu-programs")
        self._plan = plan  # what makes a plan of its fields

    def circumstances(self) -> Sequence[str] | None:
        """See `KeptPrograms.circumstances`."""
        if cache_directory() is None:
            return None
        return (sys.byteorder, np.__version__, *jit.host(), _CORE_KEY, str(native.get_threads()))

    def read(self, key: str) -> bytes | None:
        """What was written under a key."""
        return self._files.read(key)

    def write(self, key: str, data: bytes) -> None:
        """Keep data under a key, as long as there is room."""
        self._files.write(key, data)

    def packed(self, p: Program) -> bytes | None:
        """A program as bytes; None if it calls what another process does not have."""
        given = (p.inputs, p.out_nbytes, p.scratch, p.pointers)
        words, first = native.program_words(*given, stages.encoded(p.stages), p.heavy)
        names = _NamedCode()
        known: dict[int, tuple[int, Any]] = {}  # by the ids of words, which are there many times
        places = array("q")
        named = [(at, w) for at, w in enumerate(words[first:], first) if type(w) is not int]
        for at, word in named:
            if id(word) not in known:
                number = names.number(word)
                if number is None:
                    return None
                known[id(word)] = number, word
            places.extend((at, known[id(word)][0]))
            words[at] = 0
        kept = array("q", words)  # type: ignore[arg-type]
        large = np.frombuffer(kept, np.int64)[first:]
        if np.any((large >= _ADDRESSES[0]) & (large < _ADDRESSES[1])):
            return None
        if sum(map(len, names.tables)) > MOST_TABLES:
            return None
        text = names.text()
        head = _HEAD.pack(len(text), len(places) // 2, len(kept))
        return b"".join((head, text, places.tobytes(), kept.tobytes(), *names.tables))

    def unpacked(self, data: bytes, inputs: int) -> Callable[..., Any] | None:
        """See `KeptPrograms.unpacked`."""
        size, count, length = _HEAD.unpack_from(data)
        at = _HEAD.size + size
        found = json.loads(data[_HEAD.size : at])
        after = at + 16 * count
        end = after + 8 * length
        if end + sum(found["tables"]) != len(data):
            return None
        functions = self._functions(found)
        if functions is None:
            return None
        places, words = array("q"), array("q")
        places.frombytes(data[at:after])
        words.frombytes(data[after:end])
        targets = functions + self._tables(data, end, found["tables"])
        for k in range(0, len(places), 2):
            words[places[k]] = operator.index(targets[places[k + 1]])
        if words[0] != inputs:
            return None
        return native.run_array(words, targets)

    def _tables(self, data: bytes, at: int, sizes: Sequence[int]) -> list[SupportsIndex]:
        """The tables from a byte on, the last one first, so that its number is -1."""
        found: list[SupportsIndex] = []
        for nbytes in sizes:
            found.insert(0, NumberTable(np.frombuffer(data, np.uint8, nbytes, at)))
            at += nbytes
        return found

    def _functions(self, found: Any) -> list[SupportsIndex] | None:
        """The addresses of the functions that a program calls."""
        linked: dict[tuple[str | None, str], SupportsIndex] = {
            (None, n): a for n, a in _CORE.items()
        }
        for key, symbols, imports, given in found["modules"]:
            addresses = jit.linked(jit.ObjectFile(key, tuple(symbols), tuple(imports)))
            if addresses is None:
                return None
            linked |= {(key, name): address for name, address in addresses.items()}
            for name, called in given:
                if jit.symbol(called) is None:
                    jit.add_symbol(called, addresses[name])
        return [linked[key, name] for key, name in found["names"]]

    def packed_plan(self, wanted: Any) -> list[Any]:
        """A plan of indices that is wanted, as numbers and texts."""
        return list(dataclasses.astuple(wanted))

    def unpacked_plan(self, values: Sequence[Any]) -> Any:
        """The plan again."""
        return self._plan(*values)
