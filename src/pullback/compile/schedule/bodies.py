"""Expressions of fused kernels: the bodies of operations put one into the other.

Every operation's result is rounded to its own dtype on the way, so a fused chain has the bits of
its operations run one by one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pullback.compile.kernel.forms import Accumulate, Reduce
from pullback.compile.kernel.lower import broadcast_strides
from pullback.compile.schedule.groups import Access, Region, Stored
from pullback.core.avals import aval
from pullback.core.dtypes import DType
from pullback.ir.graph import Equation, Var
from pullback.ir.lowering import View, compute_dtype, operand, parts
from pullback.ir.scalar import Complex, Expr, Value, cast, const, load

__all__ = ["PLAIN", "Bodies", "Lazy", "applied", "broadcast", "literal_of"]

# From an array to another arrangement of it: a view's equation, or the shape to broadcast to.
Step = Equation | tuple[int, ...]


@dataclass(eq=False)
class Lazy:
    """A value without memory: its equation, and what computing it reads and costs."""

    eq: Equation
    leaves: list[Region]  # over the value's own shape
    parts: dict[Any, int]  # all equations that are computed, seen how, and their instructions
    indexed: bool  # whether it reads the linear index of its elements

    @property
    def cost(self) -> int:
        return sum(self.parts.values())


def broadcast(region: Region, shape: tuple[int, ...]) -> Region:
    """The region repeated to have `shape`."""
    av = aval(shape, region.aval.dtype, region.aval.device, broadcast_strides(region.aval, shape))
    return Region(region.stored, region.offset, av)


def applied(region: Region, view: Equation) -> Region | None:
    """The region seen through a view; None if strides can't express it."""
    av = region.aval
    placed = view.op.lowering.place(av, **view.static)
    if placed is None:
        return None
    offset, shape, strides = placed
    if math.prod(shape) == 0:
        offset = 0
    return Region(region.stored, region.offset + offset, aval(shape, av.dtype, av.device, strides))


def literal_of(v: Var) -> Any:
    """The number that a constant holds everywhere, or None; NaN stays in memory for its payload."""
    buf, av, _ = v.constant
    if (
        av.is_symbolic
        or av.size == 0
        or any(s for n, s in zip(av.shape, av.strides, strict=True) if n > 1)
    ):
        return None
    one = aval((), av.dtype, av.device)
    value = av.device.runtime.to_numpy(buf, one)[()]
    number = (
        complex(value)
        if av.dtype.is_complex
        else value.item()
        if av.dtype.kind in "biu"
        else float(value)
    )
    return None if number != number else number


def _rounded(value: Value, dtype: DType) -> Value:
    """The value as it would be read back after having been stored."""
    own = [cast(cast(p, dtype.real), compute_dtype(dtype)) for p in parts(value)]
    return Complex(*own) if dtype.is_complex else own[0]


class Bodies:
    """Builds the expressions of one kernel and collects what they read, in the order of loads."""

    def __init__(
        self,
        regions: Mapping[Var, Region],
        lazy: Mapping[Var, Lazy],
        literals: Mapping[Var, Any],
        shape: tuple[int, ...],
        squeeze: bool = True,
        own: Mapping[Stored, Var] | None = None,  # what the kernel computes itself
        readable: Collection[Stored] = (),  # what others have computed by then
    ):
        self.regions, self.lazy, self.literals = regions, lazy, literals
        self.shape = shape
        self.squeeze = squeeze
        self.own = own or {}
        self.readable = readable
        self.reads: list[Access] = []
        self._positions: dict[Access, int] = {}
        self._members: dict[Stored, Value] = {}
        self._known: dict[tuple[Var, tuple[Step, ...]], Value] = {}

    def member(self, stored: Stored) -> tuple[Expr, ...]:
        """The parts of a value that this kernel computes."""
        return tuple(cast(p, stored.dtype.real) for p in parts(self._member(stored)))

    def _member(self, stored: Stored) -> Value:
        if stored not in self._members:
            self._members[stored] = self._computed(self.own[stored], ())
        return self._members[stored]

    def part(self, v: Var, shape: tuple[int, ...]) -> tuple[Expr, ...]:
        """The parts of `v` broadcast to `shape`, as they are stored."""
        path = () if v.aval.shape == shape else (shape,)
        if self._is_stored(v) and v not in self.literals:
            position = self._read(self._through(self.regions[v], path))
            return self.plain_copy(v.aval.dtype, position)
        return tuple(cast(p, v.aval.dtype.real) for p in parts(self.value(v, path)))

    @staticmethod
    def plain_copy(dtype: DType, position: int = 0) -> tuple[Expr, ...]:
        """The elements as they are, NaN payloads included."""
        if dtype.is_complex:
            return parts(operand(position, dtype))
        return (load(position, dtype),)

    def fold(self, eq: Equation) -> Reduce:
        """The kernel of a reduction or running fold, with the computation of its operand inside."""
        (x,) = eq.inputs
        fold = eq.op.lowering.build(self.value(x, ()), **eq.static)
        out = eq.out.aval.dtype
        finish = tuple(cast(e, out.real) for e in fold.finish)
        form = Accumulate if eq.op.lowering.keep else Reduce
        inputs = tuple(a.stored.dtype for a in self.reads)
        return form(inputs, out, fold.init, fold.element, fold.combine, finish, fold.step)

    def value(self, v: Var, path: tuple[Step, ...]) -> Value:
        """The expression of `v` seen through the steps of `path`, in its compute dtype."""
        found = self._known.get((v, path))
        if found is None:
            found = self._known[v, path] = self._value(v, path)
        return found

    def _value(self, v: Var, path: tuple[Step, ...]) -> Value:
        if v in self.literals:
            return _literal(self.literals[v], v.aval.dtype)
        if not self._is_stored(v):
            return self._computed(v, path)
        region = self._through(self.regions[v], path)
        if region.stored in self.own:
            return self._member(region.stored) if region.is_whole else self._computed(v, path)
        return operand(self._read(region), v.aval.dtype)

    def _is_stored(self, v: Var) -> bool:
        """Whether the kernel finds `v` in memory, or keeps it there itself."""
        if v not in self.regions:
            return False
        stored = self.regions[v].stored
        return stored.origin != "computed" or stored in self.own or stored in self.readable

    def _computed(self, v: Var, path: tuple[Step, ...]) -> Value:
        eq = self.lazy[v].eq
        if type(eq.op.lowering) is View:
            return self.value(eq.inputs[0], (eq, *path))
        shape = v.aval.shape
        values = [
            self.value(u, path if u.aval.shape == shape else (shape, *path)) for u in eq.inputs
        ]
        return _rounded(element(eq.op.lowering.body, values, eq.static), v.aval.dtype)

    def _through(self, region: Region, path: tuple[Step, ...]) -> Region:
        for step in path:
            seen = broadcast(region, step) if isinstance(step, tuple) else applied(region, step)
            assert seen is not None
            region = seen
        return region

    def _read(self, region: Region) -> int:
        assert region.aval.strides is not None
        pairs = zip(region.aval.shape, region.aval.strides, strict=True)
        strides = tuple(s if n != 1 else 0 for n, s in pairs if n != 1 or not self.squeeze)
        assert len(strides) == len(self.shape)
        access = Access(region.stored, region.offset, strides)
        if access not in self._positions:
            self._positions[access] = len(self.reads)
            self.reads.append(access)
        return self._positions[access]


# What functions of elements came to for the operands in front, which stay as long as their ids are
# part of a key. Layers of a network are mostly the same few.
_elements: dict[tuple, tuple[Sequence[Value], Value]] = {}
PLAIN = frozenset([int, float, bool, str, DType])  # what is as its text says
MOST_ELEMENTS = 512  # that are kept; those of a function have some hundred expressions


def element(
    body: Callable[..., Value], values: Sequence[Value], static: Mapping[str, Any]
) -> Value:
    """`body(*values, **static)`; an equal call gives the same expression."""
    if not all(type(v) in PLAIN for v in static.values()):
        return body(*values, **static)
    ids = [id(part) for value in values for part in parts(value)]
    key = (body, *map(type, values), *ids, repr(static) if static else "")
    found = _elements.get(key)
    if found is None:
        found = values, body(*values, **static)
        if len(_elements) >= MOST_ELEMENTS:
            _elements.clear()
        _elements[key] = found
    return found[1]


def _literal(number: Any, dtype: DType) -> Value:
    part = compute_dtype(dtype)
    if dtype.is_complex:
        return Complex(const(number.real, part), const(number.imag, part))
    return const(number, part)
