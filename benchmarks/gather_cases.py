"""The cases of `pullback bench gather`: the gradient of `x[indices]`, by shape and distribution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

__all__ = ["CASES", "Bar", "Case", "Errors", "Inputs", "errors_of"]

QUICK = 64  # by how much a quick run is shorter
COLUMNS = 16  # that are summed exactly at a time


class Bar(NamedTuple):
    """What our time may be: over the best peer's, with a plan too, and over the floor."""

    ratio: float
    planned: float | None = None
    floor: float | None = None


class Inputs(NamedTuple):
    """Indices into `rows` rows, and the rows to add."""

    rows: int
    indices: np.ndarray
    updates: np.ndarray

    def nbytes(self) -> int:
        """The least bytes to read and write."""
        width = self.updates[0].nbytes
        return self.indices.nbytes + self.updates.nbytes + self.rows * width


@dataclass(frozen=True)
class Case:
    """A shape and a distribution of indices, at the sizes for a processor and for a GPU."""

    name: str
    rows: int
    width: int
    count: int
    cuda_count: int
    bar: Bar
    cuda_bar: Bar
    order: str = "random"
    dtype: str = "float32"

    @property
    def title(self) -> str:
        kind = "" if self.dtype == "float32" else f", {self.dtype}"
        return f"{self.rows:,} x {self.width}, {self.order}{kind}"

    def inputs(self, device: str = "cpu", quick: bool = False) -> Inputs:
        """Indices and updates, the same on every run."""
        rng = np.random.default_rng(0)
        count = self.count if device == "cpu" else self.cuda_count
        rows = self.rows
        if quick:
            count, rows = max(1, count // QUICK), min(rows, max(20, rows // QUICK))
        return Inputs(rows, self._indices(rng, rows, count), self._updates(rng, count))

    def _indices(self, rng: np.random.Generator, rows: int, count: int) -> np.ndarray:
        if self.order == "equal":
            return np.full(count, rows // 2)
        if self.order == "zipf":
            weights = 1 / np.arange(1, rows + 1)
            ends = np.cumsum(weights) / weights.sum()
            ranks = np.searchsorted(ends, rng.random(count)).clip(max=rows - 1)
            return rng.permutation(rows)[ranks]
        drawn = rng.integers(0, rows, count)
        return np.sort(drawn) if self.order == "sorted" else drawn

    def _updates(self, rng: np.random.Generator, count: int) -> np.ndarray:
        shape = (count,) if self.width == 1 else (count, self.width)
        values = rng.standard_normal(shape, np.float32) + np.float32(1)
        if self.dtype == "complex64":
            return values + 1j * rng.standard_normal(shape, np.float32)
        return values


_FEW = Bar(0.25), Bar(0.02, floor=1.3)
_MILLION = 1_000_000

_ALL = [
    Case("few", 20, 1, 4 * _MILLION, 64 * _MILLION, *_FEW),
    Case("few-sorted", 20, 1, 4 * _MILLION, 64 * _MILLION, *_FEW, order="sorted"),
    Case("few-equal", 20, 1, 4 * _MILLION, 64 * _MILLION, *_FEW, order="equal"),
    Case("few-short", 20, 1, _MILLION, _MILLION, Bar(0.3), Bar(0.1)),
    Case("hundreds", 200, 1, 16 * _MILLION, 16 * _MILLION, Bar(0.3), Bar(0.1, floor=2.5)),
    Case("rows", 100_000, 64, _MILLION, _MILLION, Bar(0.7), Bar(0.7, floor=2.5)),
    Case("million", _MILLION, 1, 16 * _MILLION, 16 * _MILLION, Bar(0.7), Bar(1.0, planned=0.6)),
    Case("tokens", 50_000, 768, 32_768, 32_768, Bar(0.7), Bar(0.8, floor=2.5), order="zipf"),
    Case(
        "grid",
        1_200_000,
        1,
        8 * _MILLION,
        8 * _MILLION,
        Bar(0.7),
        Bar(0.8),
        dtype="complex64",
    ),
]
CASES = {c.name: c for c in _ALL}


# -- accuracy --------------------------------------------------------------------------------------


class Errors(NamedTuple):
    """How far a result is from the exact one: in ulps of the sum of magnitudes, and relative."""

    ulp: float
    relative: float


def _sums(inputs: Inputs, values: np.ndarray) -> np.ndarray:
    """The sums by row in float64."""
    order = np.argsort(inputs.indices, kind="stable")
    present, starts = np.unique(inputs.indices[order], return_index=True)
    columns = values.reshape(len(values), -1)
    total = np.zeros((inputs.rows, columns.shape[1]))
    for first in range(0, columns.shape[1], COLUMNS):
        part = columns[order, first : first + COLUMNS].astype(np.float64)
        total[present, first : first + COLUMNS] = np.add.reduceat(part, starts)
    return total


def errors_of(inputs: Inputs, results: dict[str, np.ndarray]) -> dict[str, Errors]:
    """The largest errors of each result against sums in float64; complex parts count apart."""
    real = inputs.updates.dtype.kind != "c"
    updates = inputs.updates if real else inputs.updates.view(np.float32).reshape(-1, 2)
    exact, magnitude = _sums(inputs, updates), _sums(inputs, np.abs(updates))
    ulp = np.spacing(np.maximum(magnitude, np.finfo(np.float32).tiny).astype(np.float32))
    found = {}
    for name, result in results.items():
        values = np.ascontiguousarray(result)
        values = values if real else values.view(np.float32)
        off = np.abs(values.reshape(exact.shape).astype(np.float64) - exact)
        relative = off.max() / max(np.abs(exact).max(), 1e-300)
        found[name] = Errors(float((off / ulp).max()), float(relative))
    return found
