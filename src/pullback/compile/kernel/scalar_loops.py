"""Loops over a few scalars as one kernel: what is carried stays in registers.

A loop qualifies if all that it reads, carries and makes in a round has one element, and if its
body consists of operations on elements, of choices, and of loops like it. A scan may also read an
element of arrays in each round, and write one.

Values are expressions, of which straight code is one tree after the other. Where control flow
joins, a value gets a number, and `load(number, dtype, part)` stands for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from pullback.core.avals import Aval
from pullback.core.dtypes import DType
from pullback.ir.control import COND, SCAN, WHILE
from pullback.ir.graph import Equation, Graph, Var
from pullback.ir.lowering import Elementwise, View, compute_dtype, parts
from pullback.ir.scalar import Complex, Expr, cast, load

__all__ = ["Body", "Choice", "Looped", "Named", "ScalarLoop", "Step", "scalar_loop"]

# Beyond that, jumps between kernels take no time beside the operations, and one function of them
# all takes long to compile.
MOST_EQUATIONS = 1000  # operations in all bodies together, of loops that become one kernel

Element: TypeAlias = tuple[Expr, ...]  # a value as it lies in memory: one part, or two


@dataclass(frozen=True, eq=False)
class Body:
    """Steps, and the values that there are after them."""

    steps: tuple[Step, ...]
    results: tuple[Element, ...]


@dataclass(frozen=True, eq=False)
class Named:
    """A value that is computed here, since a loop or a choice reads it."""

    number: int
    value: Element


@dataclass(frozen=True, eq=False)
class Looped:
    """`body` while the only result of `test` holds, or for so many `rounds`.

    Value `numbers[k]` is first `first[k]`, in each round the body's result k of the round before,
    and after the loop the last one. Other results of the body are written, one in each round.
    """

    numbers: tuple[int, ...]
    first: tuple[Element, ...]
    test: Body | None
    rounds: int  # without a test; of the outermost loop the kernel is told
    body: Body


@dataclass(frozen=True, eq=False)
class Choice:
    """The results of `then` or of `otherwise`, as values `numbers`."""

    condition: Expr
    numbers: tuple[int, ...]
    then: Body
    otherwise: Body


Step: TypeAlias = Named | Looped | Choice


@dataclass(frozen=True, eq=False)
class ScalarLoop:
    """A loop whose values are numbered: first its `inputs`, then the elements of `rows`, arrays of
    which each round reads one; it gives `outputs`, and each round writes an element of `columns`.
    """

    inputs: tuple[DType, ...]
    rows: tuple[DType, ...]
    outputs: tuple[DType, ...]
    columns: tuple[DType, ...]
    reverse: bool  # the order of rows and columns
    before: tuple[Step, ...]
    loop: Looped


class _NotScalar(Exception):
    """What a loop has that can't be in registers."""


def scalar_loop(eq: Equation) -> ScalarLoop | None:
    """The kernel of a `while` or `scan`, if it is a loop over scalars."""
    try:
        return _Numbering().whole(eq)
    except _NotScalar:
        return None


class _Numbering:
    """Numbers the values of a loop."""

    def __init__(self) -> None:
        self._count = 0
        self._equations = 0

    def whole(self, eq: Equation) -> ScalarLoop:
        static = eq.static
        xs, ys = 0, 0
        if eq.op is SCAN:
            xs = len(eq.inputs) - static["constants"] - static["carries"]
            ys = len(eq.outs) - static["carries"]
        avals = [v.aval for v in eq.inputs]
        scalars, arrays = avals[: len(avals) - xs], avals[len(avals) - xs :]
        given = [self.value(_single(av)) for av in scalars]
        elements = [self.value(_single(v.aval)) for v in _trailing(static, xs)]
        steps: list[Step] = []
        results = self.loop(eq, given, elements, steps)
        *before, loop = steps
        assert isinstance(loop, Looped) and len(results) == len(eq.outs) - ys
        dtypes = [v.aval.dtype for v in eq.outs]
        return ScalarLoop(
            inputs=tuple([av.dtype for av in scalars]),
            rows=tuple([av.dtype for av in arrays]),
            outputs=tuple(dtypes[: len(results)]),
            columns=tuple(dtypes[len(results) :]),
            reverse=bool(static.get("reverse")),
            before=tuple(before),
            loop=loop,
        )

    def number(self) -> int:
        self._count += 1
        return self._count - 1

    def value(self, dtype: DType) -> Element:
        """A value with a new number."""
        return _loaded(self.number(), dtype)

    def named(self, value: Element, dtype: DType, steps: list[Step]) -> Element:
        """The value, computed once and before what follows."""
        if all(e.op in ("load", "const") for e in value):
            return value
        number = self.number()
        steps.append(Named(number, value))
        return _loaded(number, dtype)

    def body(self, graph: Graph, inputs: Sequence[Element]) -> Body:
        """The steps of a graph."""
        if graph.constants:
            raise _NotScalar
        env = dict(zip(graph.inputs, inputs, strict=True))
        steps: list[Step] = []
        for eq in graph.equations:
            self._equations += 1
            if self._equations > MOST_EQUATIONS:
                raise _NotScalar
            for v in eq.outs:
                _single(v.aval)
            given = [env[v] for v in eq.inputs]
            env |= dict(zip(eq.outs, self.results(eq, given, steps), strict=True))
        return Body(tuple(steps), tuple([env[v] for v in graph.outputs]))

    def results(self, eq: Equation, given: list[Element], steps: list[Step]) -> list[Element]:
        if eq.op in (WHILE, SCAN):
            carries = eq.static["carries"]
            if len(eq.inputs) > eq.static["constants"] + carries or len(eq.outs) > carries:
                raise _NotScalar  # it reads or writes arrays
            return self.loop(eq, given, [], steps)
        if eq.op is COND:
            return self.choice(eq, given, steps)
        low = getattr(eq.op, "lowering", None)
        (out,) = eq.outs
        if isinstance(low, View):
            return [given[0]]
        if not isinstance(low, Elementwise):
            raise _NotScalar
        operands = [_computed(x, v) for x, v in zip(given, eq.inputs, strict=True)]
        value = low.body(*operands, **eq.static)
        return [tuple([cast(p, out.aval.dtype.real) for p in parts(value)])]

    def loop(
        self, eq: Equation, given: list[Element], rows: list[Element], steps: list[Step]
    ) -> list[Element]:
        static, n = eq.static, eq.static["constants"]
        dtypes = [_single(v.aval) for v in eq.inputs[: len(given)]]
        fixed = [self.named(x, d, steps) for x, d in zip(given[:n], dtypes, strict=False)]
        numbers = [self.number() for _ in given[n:]]
        carried = [_loaded(k, d) for k, d in zip(numbers, dtypes[n:], strict=True)]
        test, rounds = None, 0
        if eq.op is WHILE:
            test = self.body(static["test"], [*fixed, *carried])
        else:
            rounds = static["length"]
        body = self.body(static["body"], [*fixed, *carried, *rows])
        steps.append(Looped(tuple(numbers), tuple(given[n:]), test, rounds, body))
        return carried

    def choice(self, eq: Equation, given: list[Element], steps: list[Step]) -> list[Element]:
        (condition,), *operands = given
        dtypes = [v.aval.dtype for v in eq.inputs[1:]]
        known = [self.named(x, d, steps) for x, d in zip(operands, dtypes, strict=True)]
        sides = [self.body(eq.static[name], known) for name in ("then", "otherwise")]
        numbers = [self.number() for _ in eq.outs]
        steps.append(Choice(condition, tuple(numbers), *sides))
        return [_loaded(k, v.aval.dtype) for k, v in zip(numbers, eq.outs, strict=True)]


def _trailing(static: dict[str, Any], count: int) -> list[Var]:
    """The last inputs of the body of a scan: the rows of its arrays."""
    inputs = static["body"].inputs
    return inputs[len(inputs) - count :]


def _single(av: Aval) -> DType:
    if av.size != 1:
        raise _NotScalar
    return av.dtype


def _loaded(number: int, dtype: DType) -> Element:
    return tuple([load(number, dtype.real, part) for part in range(1 + dtype.is_complex)])


def _computed(x: Element, v: Var) -> Any:
    """A value as operations get it: see `lowering.operand`."""
    dtype = v.aval.dtype
    return Complex(*x) if dtype.is_complex else cast(x[0], compute_dtype(dtype))
