"""Calls of a program: buffers in, the buffers of the outputs out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

from pullback.compile.program.target import Fault, Target

__all__ = ["Calls", "Surroundings"]


class Surroundings(NamedTuple):
    """What is around a program.

    It takes the inputs, then the buffers `passed`. An output is "out", "input", "constant" (one of
    `constants`) or "empty", with a position (of "out" a byte) and bytes after that.
    """

    passed: Sequence[Any]
    constants: Sequence[Any]
    outputs: Sequence[tuple[str, int, int]]
    is_empty: bool  # whether there is nothing to run


class Calls:
    """A program as a function of the buffers of the inputs.

    `errors` gives, of each error code, the operation and what it can say: it is asked when a
    program has failed.
    """

    def __init__(
        self,
        target: Target,
        program: Callable[..., Any],
        around: Surroundings,
        errors: Callable[[], Sequence[tuple[str, Fault]]],
    ):
        self._target, self._view, self._program = target, target.view, program
        self._passed, self._constants, self._outputs, is_empty = around
        self._errors = errors
        only = len(self._outputs) == 1 and self._outputs[0][:2] == ("out", 0)
        self.run = self._run_single if only else self._run_several
        self._offsets = [at for kind, at, _ in self._outputs if kind == "out"]
        if not only and len(self._offsets) == len(self._outputs):
            self.run = self._run_views
        if is_empty:
            self.run = self._run_nothing

    def run_other(self, program: Callable[..., Any], buffers: Sequence[Any]) -> list[Any]:
        """The outputs by another program of the same graph."""
        out = program(*buffers, *self._passed)
        if isinstance(out, tuple):
            self._fail(out)
        return [self._found(out, buffers, *where) for where in self._outputs]

    def _run_single(self, buffers: Sequence[Any]) -> list[Any]:
        out = self._program(*buffers, *self._passed)
        if isinstance(out, tuple):
            self._fail(out)
        return [out]

    def _run_views(self, buffers: Sequence[Any]) -> list[Any]:
        out = self._program(*buffers, *self._passed)
        if isinstance(out, tuple):
            self._fail(out)
        return [self._view(out, at) if at else out for at in self._offsets]

    def _run_several(self, buffers: Sequence[Any]) -> list[Any]:
        return self.run_other(self._program, buffers)

    def _run_nothing(self, buffers: Sequence[Any]) -> list[Any]:
        return [self._found(None, buffers, *where) for where in self._outputs]

    def _found(self, out: Any, buffers: Sequence[Any], kind: str, at: int, offset: int) -> Any:
        if kind == "out":
            return self._view(out, at) if at else out
        if kind == "empty":
            return self._target.empty(0)
        buf = buffers[at] if kind == "input" else self._constants[at]
        return self._view(buf, offset) if offset else buf

    def _fail(self, error: tuple[int, int, int]) -> NoReturn:
        code, position, value = error
        name, fault = self._errors()[code - 1]
        raise fault.error(name, position, value)
