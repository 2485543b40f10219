"""Fourier transforms along one axis as kernels of a target: any length, batch and layout.

A transform of a smooth length is its passes, a long one two stages of columns, all others are
convolutions, as `fft_order` says. A target has kernels for passes, and for what comes before and
after them: "half" and "whole" are the formulas for real numbers of `docs/fft.md`, "times" are
products with a table, followed by zeros.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from pullback.compile.kernel import fft_order, transforms
from pullback.compile.kernel.fft_order import FINE_ROWS
from pullback.compile.kernel.roots import roots
from pullback.compile.program.stages import Stage
from pullback.compile.program.target import Area, Place
from pullback.core.avals import dense_strides
from pullback.core.dtypes import DType

__all__ = ["NAMES", "Formula", "Numbers", "Passes", "Points", "Transform", "fourier_stages"]

NAMES = ("fft", "rfft", "irfft")  # of the intrinsics
S = TypeVar("S")  # a launch of the target


class Numbers(NamedTuple):
    """A table of complex numbers whose parts have a dtype, by name: equal ones are the same."""

    kind: str
    dtype: DType
    n: int
    own: int = 0

    def values(self) -> np.ndarray:
        """The table."""
        return _values(self)


@lru_cache(64)
def _values(table: Numbers) -> np.ndarray:
    kind, dtype, n, own = table
    made = {
        "pass": lambda: roots(n, transforms.pass_powers(n, own)),
        "coarse": lambda: roots(n, FINE_ROWS * np.arange(-(-own // FINE_ROWS))[:, None]
                                * np.arange(n // own)),
        "fine": lambda: roots(n, np.arange(FINE_ROWS)[:, None] * np.arange(n // own)),
        "half": lambda: _half(n, bool(own)),
        "chirps": lambda: transforms.chirp(n),
        "spectrum": lambda: transforms.spectrum(n),
    }[kind]()  # fmt: skip
    return made.astype(np.complex64 if dtype.itemsize == 4 else np.complex128)


def _half(n: int, back: bool) -> np.ndarray:
    w = roots(n, np.arange(n // 2 + 1))
    return 1j * w.conj() if back else -0.5j * w


class Points(NamedTuple):
    """Rows of numbers of a batch, all counted in real parts: strides of the batch, from number to
    number, and from a real part to its imaginary part, which if that is 0 is not there.
    """

    slot: int
    batch: tuple[int, ...]
    step: int
    imaginary: int


class Formula(NamedTuple):
    """One of "half", "whole" and "times", for so many results of each row."""

    kind: str
    source: Points
    target: Points
    n: int
    results: int
    table: Numbers | None = None
    swap: tuple[bool, bool] = (False, False)  # whether parts are exchanged before and after
    factors: tuple[float, float] = (1.0, 1.0)


class Passes(NamedTuple):
    """All passes of a transform of n points.

    Result k of item i is number `k width + i % width` of a row; so many of these are stored.
    """

    n: int
    batch: tuple[int, ...]
    source: Points
    target: Points
    swap: tuple[bool, bool]
    factor: float
    stored: int
    twist: Sequence[Numbers] = ()
    width: int = 1


class Transform(ABC, Generic[S]):
    """The launches of a transform, in order; `batch` is what all arrays have in common."""

    def __init__(self, dtype: DType, batch: tuple[int, ...], area: Area):
        self.dtype, self.batch, self.area = dtype, batch, area
        self.items = math.prod(batch)
        self.steps: list[S] = []

    @abstractmethod
    def formula(self, given: Formula) -> None:
        """Launch a formula."""

    @abstractmethod
    def passes(self, given: Passes) -> None:
        """Launch all passes of a transform."""

    def scratch(self, points: int, batch: tuple[int, ...] | None = None) -> Points:
        """Dense rows of complex numbers."""
        own = self.batch if batch is None else batch
        slot = self.area(math.prod(own) * points * 2 * self.dtype.itemsize)
        return Points(slot, tuple(s * 2 * points for s in dense_strides(own)), 2, 1)

    def complex(
        self,
        n: int,
        source: Points,
        target: Points,
        swap: tuple[bool, bool],
        factor: float,
        stored: int | None = None,
    ) -> None:
        """The transform of n numbers; `swap` exchanges their parts before and after."""
        stored = n if stored is None else stored
        if fft_order.is_smooth(n):
            self._smooth(n, source, target, swap, factor, stored)
            return
        chirps, spectrum = (Numbers(kind, self.dtype, n) for kind in ("chirps", "spectrum"))
        longer = fft_order.smooth_above(2 * n - 1)
        one, two = self.scratch(longer), self.scratch(longer)
        # A factor is taken after the product, but for numbers that were real: see `recipes` of CPU.
        factors = (1.0, factor) if source.imaginary else (factor, 1.0)
        self.formula(Formula("times", source, one, n, longer, chirps, (swap[0], False), factors))
        self._smooth(longer, one, two, (False, False), 1.0, longer)
        self.formula(Formula("times", two, one, longer, longer, spectrum, (False, True)))
        self._smooth(longer, one, two, (False, True), 1.0, longer)
        self.formula(Formula("times", two, target, stored, stored, chirps, (False, swap[1])))

    def _smooth(
        self,
        n: int,
        source: Points,
        target: Points,
        swap: tuple[bool, bool],
        factor: float,
        stored: int,
    ) -> None:
        if n <= fft_order.LONGEST:
            self.passes(Passes(n, self.batch, source, target, swap, factor, stored))
            return
        a, b = fft_order.halves_of(n)
        between = self.scratch(n)
        columns = source._replace(batch=(*source.batch, source.step), step=source.step * b)
        rows = between._replace(batch=(*between.batch, 2), step=2 * b)
        # The roots between the stages, as products: of k1 by 16 and the rest of it.
        twist = [Numbers(kind, self.dtype, n, a) for kind in ("coarse", "fine")]
        self.passes(
            Passes(a, (*self.batch, b), columns, rows, (swap[0], False), factor, n, twist, b)
        )
        columns = between._replace(batch=(*between.batch, 2 * b))
        rows = target._replace(batch=(*target.batch, target.step), step=target.step * a)
        self.passes(
            Passes(b, (*self.batch, a), columns, rows, (False, swap[1]), 1.0, stored, (), a)
        )

    def whole(self, name: str, operand: Place, result: Place, static: Mapping[str, Any]) -> None:
        """All launches of an intrinsic; the result is dense."""
        axis, factor = static["axis"], static["factor"]
        source, target = points_of(operand, axis), points_of(result, axis)
        n = (result if name == "irfft" else operand)[1].shape[axis]
        half = n // 2
        if name == "fft":
            swap = static.get("inverse", False)
            self.complex(n, source, target, (swap, swap), factor)
        elif name == "rfft" and n % 2 == 0:
            made = self.scratch(half)
            pairs = source._replace(step=2 * source.step, imaginary=source.step)
            self.complex(half, pairs, made, (False, False), factor)
            table = Numbers("half", self.dtype, n)
            self.formula(Formula("half", made, target, half, half + 1, table))
        elif name == "rfft":
            self.complex(n, source, target, (False, False), factor, half + 1)
        elif n % 2 == 0:
            made, table = self.scratch(half), Numbers("half", self.dtype, n, 1)
            self.formula(Formula("half", source, made, half, half, table, factors=(factor, 1.0)))
            pairs = target._replace(step=2 * target.step, imaginary=target.step)
            self.complex(half, made, pairs, (True, True), 1.0)
        else:
            made = self.scratch(n)
            self.formula(Formula("whole", source, made, n, n, factors=(factor, 1.0)))
            self.complex(n, made, target, (True, True), 1.0)


def points_of(place: Place, axis: int) -> Points:
    """The numbers of an array along an axis."""
    slot, av = place
    parts = 2 if av.dtype.is_complex else 1
    strides = dense_strides(av.shape) if av.strides is None else av.strides
    batch = tuple(s * parts for d, s in enumerate(strides) if d != axis)
    return Points(slot, batch, strides[axis] * parts, parts - 1)


def fourier_stages(
    transform: Callable[[DType, tuple[int, ...], Area], Transform[S]],
    stage: Callable[..., list[Stage]],
    name: str,
    operands: Sequence[Place],
    static: Mapping[str, Any],
    result: Place,
    area: Area,
    _: int,
) -> list[Stage]:
    """The stages of an intrinsic, by a target's launches; the result is dense."""
    (operand,) = operands
    y = result[1]
    if y.size == 0:
        return []
    batch = tuple(size for d, size in enumerate(y.shape) if d != static["axis"])
    t = transform(operand[1].dtype.real, batch, area)
    t.whole(name, operand, result, static)
    return stage(*t.steps)
