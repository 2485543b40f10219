"""LLVM IR text to machine code in this process, with a cache of object code on disk.

In what is made `together`, modules are compiled by several threads while their makers go on: an
address is then an object that stands for an integer, and waits for it where that is asked for.
"""

from __future__ import annotations

import contextlib
import hashlib
import operator
import os
import re
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, SupportsIndex
from weakref import ref

from pullback.core.interning import Interned
from pullback.runtime.code_cache import CodeCache
from pullback.runtime.cpu.llvm import emission
from pullback.runtime.cpu.llvm.emission import Host, host

__all__ = [
    "KEPT",
    "Address",
    "Host",
    "ObjectFile",
    "add_source",
    "add_symbol",
    "compile_ir",
    "host",
    "linked",
    "origin",
    "symbol",
    "together",
]

# One has some 40 kB linked, so that each kind keeps some 3 MB; to link it again from the disk takes
# half a millisecond.
KEPT = 64  # kernels of a kind that are found again after the last program with them is gone

# Part of every cache key: a change of how code is made gets a new number.
_CACHE_FORMAT = 1  # counts the changes of how code is made, see above
_CACHE = CodeCache("cpu")
_DECLARED = re.compile(r'^declare\b[^@]*@"?([\w.$]+)', re.MULTILINE)

_symbols: dict[str, SupportsIndex] = {}
_sources: dict[str, Callable[[], None]] = {}  # by the beginnings of the names they add
_lock = threading.RLock()  # of the linker
os.register_at_fork(
    before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
)


def add_symbol(name: str, address: SupportsIndex) -> None:
    """Lets IR compiled from now on call the C function at `address` by `name`."""
    _symbols[name] = address


def add_source(prefix: str, load: Callable[[], None]) -> None:
    """Lets `load` add the symbols whose names begin with `prefix`, when one is looked for."""
    _sources[prefix] = load


def symbol(name: str) -> SupportsIndex | None:
    """What was added by `name`."""
    return _symbols.get(name)


def origin(word: SupportsIndex) -> tuple[ObjectFile, str] | None:
    """Where the code of an address is from, and its name there; None if it is no such address."""
    address = word.address if isinstance(word, _Awaited) else word
    return (address.origin, address.name) if isinstance(address, Address) else None


def compile_ir(
    text: str, symbols: Sequence[str], *, optimise: bool = False, plain_loops: bool = False
) -> dict[str, Any]:
    """Returns the addresses of `symbols` defined by the LLVM module `text`.

    The code lives as long as one of the addresses, or a program that has it. No pass runs over the
    IR unless `optimise` is set; `plain_loops` leaves out those that widen and unroll loops, which
    take half of the time. Undefined names are looked for among `add_symbol` names, then in the
    process.
    """
    passes = "" if not optimise else "plain" if plain_loops else "passes"
    module = _Module(text, symbols, passes)
    if _open.batch is not None:
        return _open.batch.add(module)
    module.read()
    return module.addresses()


class ObjectFile(NamedTuple):
    """Where linked code is on disk, what it defines, and which names it looks for elsewhere."""

    key: str
    symbols: tuple[str, ...]
    imports: tuple[str, ...]


class Address(int):
    """The address of a function; as long as there is this object, the function is there."""

    library: _Library
    origin: ObjectFile
    name: str


class _Module:
    """LLVM IR on its way to machine code."""

    def __init__(self, text: str, symbols: Sequence[str], passes: str):
        self.text, self.symbols, self.passes = text, symbols, passes
        self._key = _key(text, passes)
        self._code: bytes | None = None
        self._addresses: dict[str, Address] | None = None

    def read(self) -> bool:
        """Whether the object code could be read from the disk."""
        self._code = _CACHE.read(self._key)
        return self._code is not None

    def emit(self) -> bytes:
        """The object code, made if nobody has."""
        if self._code is None:
            code = _emit(self.text, self.passes)
            _CACHE.write(self._key, code)
            self._code = code
        return self._code

    def addresses(self) -> dict[str, Address]:
        """The addresses of the symbols, linked if need be: once, since whoever calls a symbol has
        an integer, and keeps what the symbol stands for by then.
        """
        if self._addresses is None:
            code = self.emit()
            imports = tuple(n for n in _DECLARED.findall(self.text) if n in _symbols)
            origin = ObjectFile(self._key, tuple(self.symbols), imports)
            with _lock:
                if self._addresses is None:
                    self._addresses = _link(code, origin, self.text)
        return self._addresses


class _Awaited:
    """A symbol of a module that may not have been compiled yet; as an integer, its address."""

    __slots__ = ("_found", "_name")

    def __init__(self, module: _Module, name: str):
        self._found: _Module | Address = module
        self._name = name

    def __index__(self) -> int:
        found = self._found
        if isinstance(found, _Module):
            self._found = found = found.addresses()[self._name]  # the module may be large
        return int(found)

    @property
    def address(self) -> Address:
        """The address itself, which knows where its code is from."""
        found = self._found
        return found.addresses()[self._name] if isinstance(found, _Module) else found


class _Batch:
    """Modules that are compiled while others are still being written."""

    def __init__(self):
        self._addresses: list[_Awaited] = []
        self._todo: list[_Module] = []
        self._lock = threading.Lock()
        self._helpers: list[threading.Thread] = []

    def add(self, module: _Module) -> dict[str, _Awaited]:
        found = {name: _Awaited(module, name) for name in module.symbols}
        self._addresses += found.values()
        if not module.read():
            with self._lock:
                self._todo.append(module)
                waiting = len(self._todo)
            if len(self._helpers) < min(waiting, emission.workers() - 1):
                helper = threading.Thread(target=self._work, name="pullback-compiler", daemon=True)
                self._helpers.append(helper)
                helper.start()
        return found

    def _work(self) -> None:
        """Make the code of what nobody has begun with, the longest first."""
        while True:
            with self._lock:
                if not self._todo:
                    return
                module = max(self._todo, key=lambda m: len(m.text))
                self._todo.remove(module)
            # An error comes again where the address is asked for.
            with contextlib.suppress(RuntimeError):
                module.emit()

    def finish(self) -> None:
        self._work()
        for helper in self._helpers:
            helper.join()
        for address in self._addresses:
            operator.index(address)


class _OpenBatch(threading.local):
    """The batch that this thread is filling."""

    batch: _Batch | None = None


_open = _OpenBatch()


def together(function: Callable[..., Any], *args: Any) -> Any:
    """The result of a function; what it compiles is compiled on all cores, and has its address."""
    if _open.batch is not None:
        return function(*args)
    mine = _Batch()
    _open.batch = mine
    try:
        result = function(*args)
    finally:
        _open.batch = None
    mine.finish()
    return result


def _key(text: str, passes: str) -> str:
    parts = (str(_CACHE_FORMAT), *host(), passes, text)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _emit(text: str, passes: str) -> bytes:
    return emission.emit(text, passes)


def _link(code: bytes, origin: ObjectFile, text: str = "") -> dict[str, Address]:
    import llvmlite.binding as llvm

    needed = {name: _symbols[name] for name in origin.imports}
    imported = {name: operator.index(address) for name, address in needed.items()}
    with _lock:
        library = llvm.JITLibraryBuilder().add_object_img(code).add_current_process()
        for name, address in imported.items():
            library.import_symbol(name, address)
        for name in origin.symbols:
            library.export_symbol(name)
        try:
            mine, tracker = _linked(library)
        except RuntimeError as error:
            raise RuntimeError(f"compile_ir: cannot link, {error}\n{text}") from error
    mine.places = {name: tracker[name] for name in origin.symbols}
    mine.needed = needed
    _live.add(origin.key, mine)
    return _addresses(mine, origin)


def _addresses(library: _Library, origin: ObjectFile) -> dict[str, Address]:
    found = {name: Address(place) for name, place in library.places.items()}
    for name, address in found.items():
        address.library, address.origin, address.name = library, origin, name
    return found


def linked(origin: ObjectFile) -> dict[str, Address] | None:
    """The addresses of what an earlier process compiled; None if its code is not on disk, or calls
    what this process does not have.
    """
    library = _live.get(origin.key)
    if library is not None:
        return _addresses(library, origin) if {*origin.symbols} == {*library.places} else None
    for prefix, load in _sources.items():
        if any(name not in _symbols and name.startswith(prefix) for name in origin.imports):
            load()
    if not all(name in _symbols for name in origin.imports):
        return None
    code = _CACHE.read(origin.key)
    return None if code is None else _link(code, origin)


class _Library:
    """Stands for linked code; there is one as long as somebody has an address in it."""

    __slots__ = ("__weakref__", "needed", "places")

    places: dict[str, int]  # of what it defines
    needed: dict[str, SupportsIndex]  # what it calls, which has to stay as long


class _Linker:
    """A linker for `MOST` libraries, which is freed with the last of them.

    To free a library alone leaves 9 kB of it in its linker.
    """

    MOST = 64  # a linker is made in a millisecond: some 15 microseconds for each library

    def __init__(self):
        import llvmlite.binding as llvm

        self._made = llvm.create_lljit_compiler(emission.target_machine(), use_jit_link=True)
        self._libraries: list[tuple[ref[_Library], Any]] = []
        self._names = 0

    @property
    def full(self) -> bool:
        return self._names == self.MOST

    def link(self, library: Any) -> tuple[_Library, Any]:
        """A library that is freed some time after nobody has it, and its tracker."""
        self._names += 1
        tracker = library.link(self._made, f"pullback{self._names}")
        mine = _Library()
        self._libraries.append((ref(mine), tracker))
        return mine, tracker

    def free(self) -> bool:
        """Free the libraries that nobody has, and the linker if there are no others."""
        unused = [tracker for mine, tracker in self._libraries if mine() is None]
        self._libraries = [entry for entry in self._libraries if entry[0]() is not None]
        for tracker in unused:
            tracker.close()
        if self._libraries or not self.full:
            return False
        self._made.close()
        return True


_linkers: list[_Linker] = []
_live: Interned[_Library] = Interned()  # by the keys of their entries on disk


def _linked(library: Any) -> tuple[_Library, Any]:
    """The library, linked by the last linker, or a new one.

    Only before a new one is made is there a look at what can be freed, and nothing runs when an
    address dies: an interrupt that came then would be lost.
    """
    if not _linkers or _linkers[-1].full:
        _linkers[:] = [linker for linker in _linkers if not linker.free()]
        _linkers.append(_Linker())
    return _linkers[-1].link(library)
