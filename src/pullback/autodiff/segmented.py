"""A graph run in segments: what crosses from one to the next is kept, the rest is made again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from pullback.autodiff.reverse import close, cotangents, fresh, with_recording
from pullback.core.errors import DTypeError, ShapeError
from pullback.ir.array import make
from pullback.ir.effects import has_effect
from pullback.ir.graph import Equation
from pullback.ir.op import bind

__all__ = ["Segments", "evaluate"]

Values = dict[int, Any]  # arrays by the number of their variable


def evaluate(
    equations: Sequence[Equation], values: Values, done: Callable[[int], None] | None = None
) -> None:
    """Add the results of all equations to the values; `done` is told which have been run."""
    for k, eq in enumerate(equations):
        results = bind(eq.op, *[values[v.number] for v in eq.inputs], **eq.static)
        many = results if len(eq.outs) != 1 else [results]
        for v, r in zip(eq.outs, many, strict=True):
            values[v.number] = r
        if done is not None:
            done(k)


class Segments:
    """Equations in so many parts, and the numbers of the values that are `kept`.

    These are read by a later part than the one that makes them, or by nobody: then they are
    results. Parts end where few bytes go on, at about equal shares of all bytes.
    """

    def __init__(self, equations: Sequence[Equation], count: int, name: str):
        if isinstance(count, bool) or not isinstance(count, int):
            raise DTypeError(
                f"{name}: segments must be a number of segments, got {type(count).__name__}."
            )
        if not 1 <= count <= max(1, len(equations)):
            raise ShapeError(
                f"{name}: segments must be from 1 to {max(1, len(equations))}, the number of"
                f" operations, got {count}."
            )
        made = {v.number: k for k, eq in enumerate(equations) for v in eq.outs}
        self._last: dict[int, int] = {}
        for k, eq in enumerate(equations):
            self._last.update((v.number, k) for v in eq.inputs if v.number in made)
        ends = _ends(equations, made, self._last, count)
        self.parts = [list(equations[a:b]) for a, b in zip([0, *ends], ends, strict=False)]
        self.part_of = {v.number: j for j, p in enumerate(self.parts) for eq in p for v in eq.outs}
        self.kept = made.keys() - self._last.keys()
        tokens = {v.number for eq in equations if has_effect(eq) for v in eq.outs}
        for j, part in enumerate(self.parts):
            read = {v.number for eq in part for v in eq.inputs}
            self.kept |= {n for n in read if self.part_of.get(n, j) < j}
        self.kept -= tokens  # what acts on the world runs once

    def truncate(self, length: int) -> None:
        """Forget the equations of values from number `length` on."""
        self.parts = [[eq for eq in p if eq.outs[-1].number < length] for p in self.parts]
        self.part_of = {n: j for n, j in self.part_of.items() if n < length}

    def run(self, equations: Sequence[Equation], values: Values) -> None:
        """Run the equations, and drop what is not kept after its last use."""

        def done(k: int) -> None:
            for v in equations[k].inputs:
                if self._last.get(v.number) == k and v.number not in self.kept:
                    values.pop(v.number, None)

        with_recording(False, evaluate, equations, values, done)

    def value(self, number: int, values: Mapping[int, Any]) -> Any:
        """A value that was dropped, made again."""
        part = self.parts[self.part_of[number]]
        inside = _reads(part, values)
        with_recording(False, evaluate, _repeatable(part), inside)
        return inside[number]

    def cotangents(self, target: int, weight: Any, values: Mapping[int, Any]) -> Values:
        """The cotangents of what no part makes, by number; each part is run again, the last first.

        They are added up in the order of a sweep through all, and have the same bits.
        """
        pending: Values = {target: weight}
        for j in range(self.part_of.get(target, -1), -1, -1):
            part = self.parts[j]
            outs = [n for n in pending if self.part_of.get(n) == j]
            if not outs:
                continue
            inside = _reads(part, values)
            own = [n for n, x in inside.items() if x._aval.dtype.is_inexact]
            inside.update((n, fresh(inside[n])) for n in own)
            variables = [inside[n] for n in own]
            with_recording(True, evaluate, _repeatable(part), inside)
            ends = [n for n in (*outs, *own) if n in pending and inside[n]._node is not None]
            found = cotangents(
                [inside[n] for n in ends],
                [pending[n] for n in ends],
                variables,
                retain=False,
                create_graph=False,
            )
            close(variables)
            for n in outs:
                del pending[n]
            pending.update((n, g) for n, g in zip(own, found, strict=True) if g is not None)
        return pending


def _repeatable(part: Sequence[Equation]) -> list[Equation]:
    """The equations without those that act on the world, which run once."""
    return [eq for eq in part if not has_effect(eq)]


def _reads(part: Sequence[Equation], values: Mapping[int, Any]) -> Values:
    """What a part reads of others, unrecorded."""
    made = {v.number for eq in part for v in eq.outs}
    read = dict.fromkeys(v.number for eq in _repeatable(part) for v in eq.inputs)
    return {n: make(values[n]._buf, values[n]._aval) for n in read if n not in made}


def _ends(
    equations: Sequence[Equation], made: Mapping[int, int], last: Mapping[int, int], count: int
) -> list[int]:
    """Where parts end: the cheapest places around equal shares."""
    n = len(equations)
    going = [0] * (n + 1)  # bytes that are read after so many equations
    for eq in equations:
        for v in eq.outs:
            going[made[v.number] + 1] += v.aval.nbytes
            going[max(last.get(v.number, -1), made[v.number]) + 1] -= v.aval.nbytes
    going = list(accumulate(going))
    size = list(accumulate(sum(v.aval.nbytes for v in eq.outs) + 1 for eq in equations))
    ends: list[int] = []
    for j in range(1, count):
        low, high = (ends[-1] if ends else 0) + 1, n - (count - j)
        near = [
            k for k in range(low, high + 1)
            if abs(size[k - 1] * count - j * size[-1]) * 4 <= size[-1]
        ]  # fmt: skip
        at = range(low, high + 1)
        closest = min(at, key=lambda k: abs(size[k - 1] * count - j * size[-1]))
        ends.append(min(near, key=lambda k: (going[k], abs(k - closest)), default=closest))
    return [*ends, n]
