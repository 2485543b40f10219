"""Recording a function: which arrays it captured, and which line of the user made each value."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from os.path import dirname
from sys import _getframe
from types import CodeType, FrameType, TracebackType
from typing import Any, TypeAlias
from weakref import ref

from pullback.core.avals import Aval
from pullback.core.errors import TraceError
from pullback.ir.array import Array
from pullback.ir.graph import Graph, Var

__all__ = [
    "Recording",
    "Static",
    "inside_trace",
    "no_value",
    "note_look",
    "note_read",
    "recorded",
    "user_line",
]

_PACKAGE = dirname(dirname(__file__))


class _OpenTrace(threading.local):
    """The innermost recording that this thread is inside of."""

    innermost: Recording | None = None


_open = _OpenTrace()


# What the names of the library's files begin with, and those of the code that it generates.
_OURS = (_PACKAGE, "<elementwise", "<pull ", "<record ")


class _Files(dict[str, bool]):
    """Whether files that were met are the library's."""

    def __missing__(self, name: str) -> bool:
        ours = self[name] = name.startswith(_OURS)
        return ours


_is_ours = _Files()


def _outside(frame: FrameType | None) -> FrameType | None:
    """The innermost frame outside the library."""
    while frame is not None and _is_ours[frame.f_code.co_filename]:
        frame = frame.f_back
    return frame


def user_line(frame: FrameType | None) -> str:
    """`file:line` of the innermost frame outside the library."""
    found = _outside(frame)
    if found is None or not found.f_code.co_filename:
        return "an unknown line"
    return f"{found.f_code.co_filename}:{found.f_lineno}"


# A function, and how far it had come: to look up the line of every operation would take longer.
Place: TypeAlias = tuple[CodeType, int]


def _line_of(place: Place) -> str:
    code, at = place
    lines = [line for start, end, line in code.co_lines() if start <= at < end and line]
    return f"{code.co_filename}:{lines[0] if lines else code.co_firstlineno}"


def line_of_error(trace: TracebackType | None) -> str:
    """`file:line` of the innermost frame outside the library that an exception left, or ""."""
    found = ""
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith(_OURS):
            found = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found


class Static:
    """An argument that is kept out of the tree of traced arguments."""

    __slots__ = ("value",)

    def __init__(self, value: Any):
        self.value = value


class Recording(Graph):
    """A graph that knows where its values come from, and that ends with its function."""

    transform = "jit"  # whose graph it is

    def __init__(self, name: str):
        super().__init__(name)
        self.closed = False
        self.read: list[Any] = []  # NumPy arrays and their like that were taken for arrays
        self.looked = False  # whether Python saw the contents of some array
        # handles of captured arrays, by the number of their constant
        self.handles: dict[int, list[ref[Array]]] = {}
        # operation and place of a value, by its number
        self._origins: dict[int, tuple[str, Place | None]] = {}

    def close(self) -> None:
        """End of the recorded function: from now on its values are good for nothing."""
        self.closed = True

    def add_input(self, av: Aval) -> Array:
        array = super().add_input(av)
        self._origins[array._buf.number] = ("an argument", None)
        return array

    def capture(self, array: Array) -> Var:
        if isinstance(array._buf, Var):
            if array._buf.graph is self:
                return array._buf
            refuse_leaked(array)
        found = super().capture(array)
        known = [r for r in self.handles.get(found.number, ()) if r() is not None]
        if not any(r() is array for r in known):
            self.handles[found.number] = [*known, ref(array)]
        return found

    def add(
        self, op: Any, arrays: Sequence[Array], static: dict[str, Any], outs: Sequence[Aval]
    ) -> list[Any]:
        if self.closed:
            for a in arrays:
                refuse_leaked(a)
        results = super().add(op, arrays, static, outs)
        self._note(op, results, _getframe(1))
        return results

    def _note(self, op: Any, results: Sequence[Array], frame: FrameType) -> None:
        """Keep where values were computed."""
        outside = _outside(frame)
        made = (op.name, None if outside is None else (outside.f_code, outside.f_lasti))
        for r in results:
            self._origins[r._buf.number] = made

    def origin(self, var: Var) -> str:
        """How a value came about, for messages."""
        made, place = self._origins.get(var.number, ("a captured array", None))
        return made if place is None else f"made by {made} at {_line_of(place)}"


def _origin(array: Array) -> str:
    graph = array._buf.graph
    return graph.origin(array._buf) if isinstance(graph, Recording) else "a traced value"


def refuse_leaked(array: Array) -> None:
    """Raise if an array belongs to a recording that has ended."""
    var = array._buf
    if isinstance(var, Var) and isinstance(var.graph, Recording) and var.graph.closed:
        raise TraceError(
            f"{var.graph.transform}: a traced value of `{var.graph.name}` is used after the trace"
            f" has ended, got {array._aval}, {_origin(array)}. Return it from the function; what"
            " it stores elsewhere while it is traced holds no numbers."
        )


def no_value(name: str, array: Array, hint: str = "") -> TraceError:
    """The error for a traced array of which `name` needs the contents."""
    refuse_leaked(array)
    hint = hint or "Use pullback operations only, or compute it outside of the traced function."
    return TraceError(
        f"{name}: a traced tensor has no value yet, got {array._aval}, {_origin(array)};"
        f" asked for at {user_line(_getframe(1))}. {hint}"
    )


def inside_trace() -> bool:
    """Whether this thread is recording a function."""
    return _open.innermost is not None


def innermost() -> Recording | None:
    """The function that this thread is recording, if there is one."""
    return _open.innermost


def note_read(value: Any) -> None:
    """Note that a recorded function reads memory that is not ours."""
    if _open.innermost is not None:
        _open.innermost.read.append(value)


def note_look() -> None:
    """Note that a recorded function gets to see the contents of an array."""
    if _open.innermost is not None:
        _open.innermost.looked = True


def recorded(graph: Recording, function: Callable[..., Any], *args: Any) -> Any:
    """The result of a function that `graph` records; it is closed afterwards, whatever happens."""
    outside, _open.innermost = _open.innermost, graph
    try:
        return function(*args)
    finally:
        _open.innermost = outside
        if outside is not None:
            outside.read += graph.read
            outside.looked |= graph.looked
        graph.close()
