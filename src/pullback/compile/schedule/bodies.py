"""Expressions of fused kernels: the bodies of operations put one into the other.

Every operation's result is rounded to its own dtype on the way, so a fused chain has the bits of
its operations run one by one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from pullback.compile.kernel.forms import Accumulate, Reduce
from pullback.compile.kernel.lower import broadcast_strides
from pullback.compile.schedule.groups import Access, Region, Stored
from pullback.core.avals import Aval, aval
from pullback.core.dtypes import DType
from pullback.ir.graph import Equation, Var
from pullback.ir.lowering import Elementwise, Fold, View, compute_dtype, operand, parts
from pullback.ir.scalar import Complex, Expr, Value, cast, const, load

__all__ = [
    "MOST_KINDS",
    "Bodies",
    "Lazy",
    "applied",
    "broadcast",
    "dense",
    "is_plain",
    "literal_of",
]

MOST_KINDS = 4096  # of arrays, of which something is remembered

# From an array to another arrangement of it: a view's equation, or the shape to broadcast to.
Step = Equation | tuple[int, ...]


@dataclass(eq=False)
class Lazy:
    """A value without memory: its equation, and what computing it reads and costs."""

    eq: Equation
    leaves: list[Region]  # over the value's own shape
    parts: dict[Any, int]  # all equations that are computed, seen how, and their instructions
    indexed: bool  # whether it reads the linear index of its elements
    cost: int = field(init=False)

    def __post_init__(self):
        self.cost = sum(self.parts.values())


def broadcast(region: Region, shape: tuple[int, ...]) -> Region:
    """The region repeated to have `shape`."""
    return Region(region.stored, region.offset, _broadcast(region.aval, shape))


# Layers of a network have arrays of the same few kinds.
@lru_cache(MOST_KINDS)
def _broadcast(av: Aval, shape: tuple[int, ...]) -> Aval:
    return aval(shape, av.dtype, av.device, broadcast_strides(av, shape))


@lru_cache(MOST_KINDS)
def dense(av: Aval) -> Aval:
    """A row-major array of that shape, dtype and device."""
    return aval(av.shape, av.dtype, av.device)


@lru_cache(MOST_KINDS)
def _walk(av: Aval, squeeze: bool) -> tuple[int, ...]:
    """The strides of an array over its axes, or over those that are no longer than 1."""
    assert av.strides is not None
    pairs = zip(av.shape, av.strides, strict=True)
    return tuple([s if n != 1 else 0 for n, s in pairs if n != 1 or not squeeze])


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


def literal_of(v: Var) -> Value | None:
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
    return None if number != number else _literal(number, av.dtype)


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
        literals: Mapping[Var, Value],
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
        value = self.value(x, ())
        inputs = tuple([a.stored.aval.dtype for a in self.reads])
        return _made(_fold_kernel, (value, inputs), eq.op.lowering, eq.static, eq.out.aval)

    def value(self, v: Var, path: tuple[Step, ...]) -> Value:
        """The expression of `v` seen through the steps of `path`, in its compute dtype."""
        key = v, path
        found = self._known.get(key)
        if found is None:
            found = self.literals.get(v)
            if found is None or self.regions[v].stored in self.readable:
                found = self._read_back(v, path) if self._is_stored(v) else self._computed(v, path)
            self._known[key] = found
        return found

    def _read_back(self, v: Var, path: tuple[Step, ...]) -> Value:
        """The expression of `v` where the kernel has it, or finds it, in memory."""
        region = self._through(self.regions[v], path)
        if region.stored in self.own:
            return self._member(region.stored) if region.is_whole else self._computed(v, path)
        return operand(self._read(region), v.aval.dtype)

    def _is_stored(self, v: Var) -> bool:
        """Whether the kernel finds `v` in memory, or keeps it there itself."""
        region = self.regions.get(v)
        if region is None:
            return False
        stored = region.stored
        return stored.origin != "computed" or stored in self.own or stored in self.readable

    def _computed(self, v: Var, path: tuple[Step, ...]) -> Value:
        eq = self.lazy[v].eq
        if type(eq.op.lowering) is View:
            return self.value(eq.inputs[0], (eq, *path))
        shape, value = v.aval.shape, self.value
        values = tuple(
            [value(u, path if u.aval.shape == shape else (shape, *path)) for u in eq.inputs]
        )
        return _made(_element, values, eq.op.lowering, eq.static, v.aval)

    def _through(self, region: Region, path: tuple[Step, ...]) -> Region:
        for step in path:
            seen = broadcast(region, step) if isinstance(step, tuple) else applied(region, step)
            assert seen is not None
            region = seen
        return region

    def _read(self, region: Region) -> int:
        strides = _walk(region.aval, self.squeeze)
        assert len(strides) == len(self.shape)
        access = Access(region.stored, region.offset, strides)
        position = self._positions.get(access)
        if position is None:
            position = self._positions[access] = len(self.reads)
            self.reads.append(access)
        return position


# What was made of values before, which stay as long as they are a part of a key: layers of a
# network are mostly the same few.
_remembered: dict[tuple, Any] = {}
_PLAIN = frozenset([int, float, bool, str, DType])
MOST_REMEMBERED = 1024  # of a function there are some hundred


def is_plain(values: Iterable[Any]) -> bool:
    """Whether static parameters are as their text says."""
    for v in values:
        kind = type(v)
        if kind not in _PLAIN and not (kind is tuple and is_plain(v)):
            return False
    return True


def _made(
    make: Callable[..., Any], values: tuple, low: Any, static: Mapping[str, Any], av: Aval
) -> Any:
    """`make(values, low, static, dtype of av)`; an equal call gives the same object."""
    if not static:
        key = (make, id(low), av.dtype.name, values)
    elif is_plain(static.values()):
        key = (make, id(low), av.dtype.name, values, repr(static))
    else:
        return make(values, low, static, av.dtype)
    found = _remembered.get(key)
    if found is None:
        found = low, make(values, low, static, av.dtype)  # which has the id as long
        if len(_remembered) >= MOST_REMEMBERED:
            _remembered.clear()
        _remembered[key] = found
    return found[1]


def _element(
    values: Sequence[Value], low: Elementwise, static: Mapping[str, Any], dtype: DType
) -> Value:
    """One element of the result, as it would be read back."""
    return _rounded(low.body(*values, **static), dtype)


def _fold_kernel(
    values: tuple[Value, tuple[DType, ...]], low: Fold, static: Mapping[str, Any], out: DType
) -> Reduce | Accumulate:
    """The kernel of a fold of such elements, made of operands of these dtypes."""
    value, inputs = values
    fold = low.build(value, **static)
    finish = tuple(cast(e, out.real) for e in fold.finish)
    form = Accumulate if low.keep else Reduce
    return form(inputs, out, fold.init, fold.element, fold.combine, finish, fold.step)


def _literal(number: Any, dtype: DType) -> Value:
    part = compute_dtype(dtype)
    if dtype.is_complex:
        return Complex(const(number.real, part), const(number.imag, part))
    return const(number, part)
