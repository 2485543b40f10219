"""Kernels on a GPU: a source is compiled and loaded once, whichever threads ask for it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from threading import RLock
from typing import Any

from pullback.runtime.cuda.code import machine_code
from pullback.runtime.cuda.conditions import PTX
from pullback.runtime.cuda.contexts import CudaContext
from pullback.runtime.cuda.driver import Driver

__all__ = ["SPARE_BYTES", "Loaded", "Modules"]

COMPILERS = 8  # kernels that are compiled at a time
LOCKS = 64  # for as many sources at a time: of those that share one, one waits for the other
SHARED_BYTES = 48 << 10  # that every launch may give a thread block without asking
# For programs that are made again: some 300 kernels. With what the driver has of each, the host has
# five times as much.
SPARE_BYTES = 1 << 24  # of machine code that stays loaded though no program uses it


class Loaded:
    """The kernels of a source, for as long as somebody has this."""

    def __init__(self, driver: Driver, module: Any, nbytes: int):
        self.nbytes = nbytes
        self._driver, self._module, self._lock = driver, module, RLock()
        self._functions: dict[str, Any] = {}
        self._shared: dict[str, int] = {}  # bytes that launches may ask for by now

    def function(self, name: str, shared: int = 0) -> int:
        """The handle of a kernel whose launches may give a block so many bytes of shared memory."""
        with self._lock:
            if name not in self._functions:
                self._functions[name] = self._module.get_function(name)
            handle = self._functions[name].ptr
            if shared > self._shared.get(name, SHARED_BYTES):
                self._driver.allow_shared(handle, shared)
                self._shared[name] = shared
        return handle


class Modules:
    """The kernels of a GPU by their sources; `make` loads machine code."""

    def __init__(
        self,
        driver: Driver,
        context: CudaContext,
        architecture: str,
        make: Callable[[bytes], Any],
        free_graphs: Callable[[], None],
    ):
        self._driver, self._context, self._make = driver, context, make
        self._architecture, self._free_graphs = architecture, free_graphs
        self._lock = RLock()
        self._making = [RLock() for _ in range(LOCKS)]
        self._loaded: dict[str, Loaded] = {}

    def load(self, sources: Iterable[str]) -> Mapping[str, Loaded]:
        """The kernels of sources, which are compiled side by side."""
        wanted = list(dict.fromkeys(sources))
        with self._lock:
            known = {s: self._loaded[s] for s in wanted if s in self._loaded}
        missing = [s for s in wanted if s not in known]
        if len(missing) > 1:
            with ThreadPoolExecutor(min(COMPILERS, len(missing))) as pool:
                known |= zip(missing, pool.map(self._one, missing), strict=True)
        elif missing:
            known[missing[0]] = self._one(missing[0])
        return known

    def _one(self, source: str) -> Loaded:
        """The kernels of a source. A second module of it would take the place of the first, whose
        handles others may have.
        """
        with self._making[hash(source) % LOCKS]:
            with self._lock:
                found = self._loaded.get(source)
            if found is not None:
                return found
            if source.startswith(PTX):  # the driver compiles it
                code = source.encode() + b"\0"
            else:
                code = machine_code(source, self._architecture)
            with self._context.entered():
                module = self._make(code)
            found = Loaded(self._driver, module, len(code))
            with self._lock:
                self._loaded[source] = found
            self._unload()
        return found

    def _unload(self) -> None:
        """Let go of what no program has any more, the oldest first, if that is much."""
        with self._lock:
            # The references are that of the dictionary and of `getrefcount` itself.
            idle = [s for s in self._loaded if sys.getrefcount(self._loaded[s]) <= 2]
            spare = sum(self._loaded[s].nbytes for s in idle)
            if spare <= SPARE_BYTES:
                return
            dropped: list[Loaded] = []
            for source in idle:
                if spare > SPARE_BYTES // 2:
                    dropped.append(self._loaded.pop(source))
                    spare -= dropped[-1].nbytes
        with self._context.entered():  # where modules are freed
            self._driver.finish()  # the device may be running them
            self._free_graphs()  # their nodes are kernels of these
            dropped.clear()
