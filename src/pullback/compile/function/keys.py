"""What a compiled graph is found by on disk: a digest of all that decides what becomes of it.

That is the graph, written down in full with the contents of its constants, the version of the
package, the machine, settings and tuning. A graph that holds what has no such text, as a function
of the host, has no key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from pullback.compile.program.kept import Key
from pullback.compile.program.target import Target
from pullback.core.avals import Aval, Device, default_device
from pullback.core.dtypes import DType, default_float
from pullback.core.fingerprint import fingerprint, tuning
from pullback.core.precision import get_matmul_precision
from pullback.ir.control import CONTROL
from pullback.ir.graph import Graph, Var
from pullback.ir.op import REGISTRY, Op

__all__ = ["key_of"]

FORMAT = 1  # counts the changes of what a file or a key contains

# So many equations are compiled in 25 ms, while to look, hash and read takes one, to write another
# one, and to find the version 2 at the first time.
LEAST_EQUATIONS = 128  # from which on a graph is looked for on disk
MOST_BYTES = 1 << 26  # of a graph's constants, up to which they are hashed: that takes 60 ms


class _NoTextError(Exception):
    """Something that a digest can't stand for."""


def key_of(graph: Graph, *settings: Any) -> Key | None:
    """The key of what becomes of a graph with these settings; None if it should not be kept."""
    if len(graph.equations) < LEAST_EQUATIONS or not graph.inputs:
        return None
    device = graph.inputs[0].aval.device
    target: Target = device.runtime.target  # type: ignore[attr-defined]
    circumstances = None if target.kept is None else target.kept.circumstances()
    version = None if circumstances is None else fingerprint()
    if version is None or circumstances is None:
        return None
    around = (
        *(str(FORMAT), version, tuning(), str(device), repr(target.tuning), repr(settings)),
        *(default_float().name, str(default_device()), get_matmul_precision(), *circumstances),
    )
    text = _GraphText(device)
    try:
        text.graph(graph)
        contents = _contents(text.constants)
    except (_NoTextError, KeyError):
        return None
    digest = hashlib.sha256("\0".join((*around, *text.parts)).encode())
    digest.update(contents)
    return Key(digest.hexdigest(), device, [v.constant[0] for v in text.constants])


def _contents(constants: Iterable[Var]) -> bytes:
    """A digest of what is in the constants."""
    digest, known, size = hashlib.sha256(), dict[int, int](), 0
    for v in constants:
        buf, av, node = v.constant
        if node is not None or av.is_symbolic:
            raise _NoTextError
        seen = f"{av.shape} {av.dtype.name} {av.strides} "
        number = known.setdefault(id(buf), len(known))
        array = av.device.runtime.to_numpy(buf, av)
        size += array.nbytes
        if size > MOST_BYTES:
            raise _NoTextError
        digest.update(f"{seen}{number}\0".encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.digest()


class _GraphText:
    """Writes graphs down, variables by their numbers and types by that of their first use."""

    def __init__(self, device: Device):
        self.parts: list[str] = []
        self.constants: list[Var] = []
        self._device = device
        self._numbers: dict[Var, str] = {}
        self._types: dict[Aval, str] = {}

    def graph(self, graph: Graph) -> None:
        parts, numbers = self.parts, self._numbers
        self.constants += graph.constants
        parts += ["graph", self._new(graph.inputs), self._new(graph.constants)]
        for eq in graph.equations:
            inputs = " ".join([numbers[v] for v in eq.inputs])
            parts += (_name(eq.op), inputs)
            for name, value in eq.static.items():
                parts.append(name)
                self._value(value)
            parts.append(self._new(eq.outs))
        parts += [" ".join([numbers[v] for v in graph.outputs]), "end"]

    def _new(self, variables: Sequence[Var]) -> str:
        """Number these variables; their types."""
        types = []
        for v in variables:
            self._numbers[v] = str(len(self._numbers))
            types.append(self._types.get(v.aval) or self._type(v.aval))
        return " ".join(types)

    def _type(self, av: Aval) -> str:
        if av.device is not self._device:
            raise _NoTextError
        self._types[av] = f"t{len(self._types)}"
        return f"{self._types[av]}={av.dtype.name}{av.shape}"

    def _value(self, value: Any) -> None:
        """Write a static parameter down, so that no two have the same text."""
        kind = type(value)
        if kind in _PLAIN:
            self.parts.append(f"{kind.__name__} {value!r}")
        elif kind is DType or kind is Device:
            self.parts.append(f"{kind.__name__} {value}")
        elif kind is tuple or kind is list:
            self.parts.append(f"{kind.__name__} {len(value)}")
            for item in value:
                self._value(item)
        elif isinstance(value, Graph):
            self.graph(value)
        elif kind.__module__.startswith("pullback.") and isinstance(value, tuple):
            self._record(kind, value)
        elif kind.__module__.startswith("pullback.") and is_dataclass(value):
            self._record(kind, [getattr(value, f.name) for f in fields(value)])
        else:
            raise _NoTextError

    def _record(self, kind: type, values: Sequence[Any]) -> None:
        self.parts.append(f"{kind.__module__}.{kind.__qualname__} {len(values)}")
        for value in values:
            self._value(value)


_PLAIN = frozenset([int, float, complex, bool, str, bytes, type(None)])
_names: dict[Any, str] = {}


def _name(op: Any) -> str:
    """The name of an operation of the package."""
    found = _names.get(op)
    if found is None:
        found = _names[op] = _registered(op)
    return found


def _registered(op: Any) -> str:
    name = f"{getattr(op, 'namespace', '')}.{op.name}".lstrip(".")
    ours = isinstance(op, Op) and op.infer.__module__.startswith("pullback.")
    if op in CONTROL or (ours and REGISTRY.get(name) is op):
        return name
    raise _NoTextError
