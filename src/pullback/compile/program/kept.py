"""Compiled graphs as files: what is needed to run one for inputs of some layout, without its graph.

A file names the constants of the traced graph by their numbers, and holds the contents of others.
It is parsed as numbers and texts; what is not as it should be counts as no file.
"""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from threading import Lock
from typing import Any, NamedTuple

import numpy as np

from pullback.compile.program.calls import Calls, Surroundings
from pullback.compile.program.executable import Assembled, Executable, Version
from pullback.compile.program.slots import Planned
from pullback.compile.program.target import Target, Timing
from pullback.compile.schedule.budget import GroupedRung
from pullback.compile.schedule.timeline import Timeline
from pullback.core import dtypes
from pullback.core.avals import Aval, Device, aval
from pullback.core.errors import PullbackError
from pullback.ir.graph import Graph

__all__ = ["KeptExecutable", "KeptGraph", "Key", "Source", "read", "write"]

MOST_DATA = 1 << 20  # bytes of constants, made while a graph was compiled, that a file may hold
MOST_BYTES = 1 << 27  # bytes of a file, unpacked: a program of 10,000 operations has some 2 MB
_HEAD = struct.Struct("<QQ")  # bytes of the head, and of the program after it
_WRONG = (
    *(ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError),
    *(struct.error, zlib.error, PullbackError, RuntimeError),
)

# Where an output of a compiled graph comes from: see `Compiled`.
Source = tuple[str, Any]


class Key(NamedTuple):
    """What a compiled graph is found by, and what is needed to run it besides a file."""

    digest: str
    device: Device
    constants: Sequence[Any]  # the buffers of the traced graph's constants

    def part(self, *which: Any) -> Key:
        """The key of a part of what is computed; `which` are numbers, flags and texts."""
        text = f"{self.digest} {which!r}"
        return self._replace(digest=hashlib.sha256(text.encode()).hexdigest())

    def layout(self, avals: Sequence[Aval]) -> Key:
        """The key of what is compiled for these layouts."""
        return self if all(av.dense for av in avals) else self.part([av.strides for av in avals])


class KeptGraph(NamedTuple):
    """A graph as it was read: the layouts it is compiled for, where outputs come from (see
    `Compiled`), the program, and what is around that.
    """

    inputs: tuple[Aval, ...]
    sources: list[Source]
    avals: list[Aval]
    around: Surroundings
    planned: list[Planned]
    run: Callable[..., Any]


class KeptExecutable:
    """A compiled graph that was read; what only the graph can tell is found out when asked for."""

    def __init__(self, key: Key, found: KeptGraph, target: Target, make: Callable[[], Executable]):
        self._key, self._target = key, target
        self._make, self._lock = make, Lock()
        self._whole: Executable | None = None
        self._runs = {found.inputs: self._run(found)}

    def __call__(self, buffers: Sequence[Any], avals: Sequence[Aval]) -> list[Any]:
        run = self._runs.get(tuple(avals))
        if run is None:
            run = self._runs[tuple(avals)] = self._other(tuple(avals))
        return run(buffers)

    def _other(self, avals: tuple[Aval, ...]) -> Callable[[Sequence[Any]], list[Any]]:
        """What runs the graph on inputs of another layout."""
        if self._whole is None:
            found = read(self._key.layout(avals), self._target)
            if found is not None and found.inputs == avals:
                return self._run(found)
        return self.whole.version(avals).run

    def _run(self, found: KeptGraph) -> Callable[[Sequence[Any]], list[Any]]:
        program = found.run
        if found.planned:
            program = partial(self._run_planned, found)
        around = found.around
        return Calls(self._target, program, around, lambda: self._version(found).errors).run

    def _version(self, found: KeptGraph) -> Version:
        return self.whole.version(found.inputs)

    def _run_planned(self, found: KeptGraph, *buffers: Any) -> Any:
        """By the program that uses plans of indices, as soon as there are some."""
        for p in found.planned:
            if self._target.plan_arrays(buffers[p.slot - 1], p.dtype, p.wanted) is not None:
                return self._version(found).run_program(*buffers)
        return found.run(*buffers)

    @property
    def whole(self) -> Executable:
        """The graph, compiled again."""
        with self._lock:
            if self._whole is None:
                self._whole = self._make()
            return self._whole

    def timed(
        self, buffers: Sequence[Any], avals: Sequence[Aval]
    ) -> tuple[list[Any], list[Timing]]:
        """See `Executable.timed`."""
        return self.whole.timed(buffers, avals)

    @property
    def peak_bytes(self) -> int:
        """See `Executable.peak_bytes`."""
        return self.whole.peak_bytes

    @property
    def timeline(self) -> Timeline:
        """See `Executable.timeline`."""
        return self.whole.timeline

    @property
    def graph(self) -> Graph:
        """See `Executable.graph`."""
        return self.whole.graph

    def assembled(self) -> Assembled:
        """See `Executable.assembled`."""
        return self.whole.assembled()

    def ladder(self) -> list[GroupedRung]:
        """See `Executable.ladder`."""
        return self.whole.ladder()

    def describe(self) -> str:
        """See `Executable.describe`."""
        return self.whole.describe()


# -- writing ---------------------------------------------------------------------------------------


class _Buffers:
    """Buffers by numbers: those of constants of the traced graph, and negative ones for data."""

    def __init__(self, key: Key):
        self._known = {id(b): k for k, b in enumerate(key.constants)}
        self._device, self.data = key.device, list[bytes]()

    def number(self, buf: Any) -> int:
        known = self._known.get(id(buf))
        if known is None:
            av = aval((buf.nbytes,), dtypes.uint8, self._device)
            if buf.nbytes + sum(map(len, self.data)) > MOST_DATA:
                raise ValueError("kept: the constants are too large.")
            self.data.append(self._device.runtime.to_numpy(buf, av).tobytes())
            known = self._known[id(buf)] = -len(self.data)
        return known


def write(
    key: Key, target: Target, sources: Sequence[Source], avals: Sequence[Aval], version: Version
) -> None:
    """Keep what was compiled for some layout, if another process can run it."""
    if target.kept is None:
        return
    program = target.kept.packed(version.program)
    if program is None:
        return
    buffers, around = _Buffers(key), version.around
    try:
        head = {
            "inputs": [(*_type(av), av.strides) for av in version.avals],
            "sources": [_packed_source(source, buffers) for source in sources],
            "avals": [_type(av) for av in avals],
            "passed": [buffers.number(b) for b in around.passed],
            "constants": [buffers.number(b) for b in around.constants],
            "outputs": around.outputs,
            "empty": around.is_empty,
            "planned": [
                (p.slot, p.dtype.name, target.kept.packed_plan(p.wanted)) for p in version.planned
            ],
            "data": [len(d) for d in buffers.data],
        }
    except ValueError:
        return
    text = json.dumps(head).encode()
    parts = (_HEAD.pack(len(text), len(program)), text, program, *buffers.data)
    target.kept.write(key.layout(version.avals).digest, zlib.compress(b"".join(parts), 1))


def _type(av: Aval) -> tuple[tuple[int, ...], str]:
    return av.shape, av.dtype.name


def _packed_source(source: Source, buffers: _Buffers) -> tuple[str, Any]:
    kind, where = source
    if kind != "constant":
        return source
    buf, av = where
    return kind, (buffers.number(buf), *_type(av), av.strides)


# -- reading ---------------------------------------------------------------------------------------


def read(key: Key, target: Target) -> KeptGraph | None:
    """What was kept under a key; None if that is nothing, or not what was written."""
    packed = None if target.kept is None else target.kept.read(key.digest)
    if packed is None:
        return None
    try:
        opened = zlib.decompressobj()
        data = opened.decompress(packed, MOST_BYTES)
        return _parsed(data, key, target) if opened.eof else None
    except _WRONG:
        return None


def _parsed(data: bytes, key: Key, target: Target) -> KeptGraph | None:
    size, length = _HEAD.unpack_from(data)
    start = _HEAD.size + size
    head = json.loads(data[_HEAD.size : start])
    end, made = start + length, list[Any]()
    for nbytes in head["data"]:
        contents = np.frombuffer(data, np.uint8, nbytes, end)
        made.append(key.device.runtime.from_numpy(contents, True))
        end += nbytes
    if end != len(data):
        return None

    def buffer(k: int) -> Any:
        if not -len(made) <= k < len(key.constants):
            raise ValueError(f"kept: there is no constant {k}.")
        return made[-1 - k] if k < 0 else key.constants[k]

    def seen(shape: Sequence[int], dtype: str, strides: Sequence[int] | None = None) -> Aval:
        # 1.0 equals 1, so that a shape with it would be taken for another array's
        if not all(type(n) is int for n in (*shape, *(strides or ()))):
            raise TypeError(f"kept: expected integers, got {shape} and {strides}.")
        steps = None if strides is None else tuple(strides)
        return aval(tuple(shape), _DTYPES[dtype], key.device, steps)

    inputs = tuple([seen(*t) for t in head["inputs"]])
    avals = [seen(*t) for t in head["avals"]]
    passed = [buffer(k) for k in head["passed"]]
    constants = [buffer(k) for k in head["constants"]]
    sources = [
        (kind, (buffer(where[0]), seen(*where[1:])) if kind == "constant" else where)
        for kind, where in head["sources"]
    ]
    most = {"input": len(inputs), "constant": len(constants), "out": 1 << 62, "empty": 1}
    outputs = [_place(kind, at, offset, most) for kind, at, offset in head["outputs"]]
    assert target.kept is not None
    planned = [
        Planned(slot, _DTYPES[dtype], target.kept.unpacked_plan(wanted))
        for slot, dtype, wanted in head["planned"]
    ]
    run = target.kept.unpacked(data[start : start + length], len(inputs) + len(passed))
    if run is None or not all(_is_source(s, len(inputs), len(avals)) for s in sources):
        return None
    around = Surroundings(passed, constants, outputs, bool(head["empty"]))
    return KeptGraph(inputs, sources, avals, around, planned, run)


_DTYPES = {dtype.name: dtype for dtype in dtypes.ALL}


def _place(kind: str, at: int, offset: int, most: dict[str, int]) -> tuple[str, int, int]:
    """Where an output is; an error if it can't be there."""
    if type(at) is not int or type(offset) is not int:
        raise TypeError(f"kept: expected integers, got {at} and {offset}.")
    if not 0 <= at < most[kind] or offset < 0:
        raise ValueError(f"kept: there is no {kind} {at}, {offset}.")
    return kind, at, offset


def _is_source(source: Source, inputs: int, computed: int) -> bool:
    kind, where = source
    known = {"input": inputs, "computed": computed}
    return kind == "constant" or (type(where) is int and 0 <= where < known[kind])
