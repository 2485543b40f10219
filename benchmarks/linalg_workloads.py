"""The workloads of `pullback bench linalg`: factorisations and solutions, and their gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.programs import Function
from benchmarks.workloads import Sizes, Workload

__all__ = ["LINALG_WORKLOADS", "VALUES", "linalg_program"]

PREFIX = "linalg."  # begins the names of these workloads, and
GRADIENT = "_gradient"  # ends that of a value with its gradient

# What is computed, in words that all libraries share. Signs are taken out of what is compared.
CALLS: dict[str, Callable[[Any, Any, Any], tuple]] = {
    "cholesky": lambda xp, x, b: (xp.linalg.cholesky(x),),
    "solve": lambda xp, x, b: (xp.linalg.solve(x, b),),
    "inv": lambda xp, x, b: (xp.linalg.inv(x),),
    "det": lambda xp, x, b: (xp.linalg.det(x),),
    "qr": lambda xp, x, b: tuple(abs(y) for y in xp.linalg.qr(x)),
    "eigh": lambda xp, x, b: tuple(abs(y) for y in xp.linalg.eigh(x)),
    "svd": lambda xp, x, b: tuple(abs(y) for y in xp.linalg.svd(x, full_matrices=False)),
}


@dataclass(frozen=True)
class Case:
    """A call on batches of matrices of one size, and our time over the best peer's, at most."""

    call: str
    n: int
    batch: int
    bar: float

    @property
    def name(self) -> str:
        return f"{PREFIX}{self.call}_{self.n}"


def _cases() -> list[Case]:
    small = [
        Case(c, n, 100_000, 0.2) for n in (3, 4, 8, 16) for c in ("cholesky", "solve", "inv", "det")
    ]
    small += [Case(c, n, 100_000, 0.1) for n in (3, 4) for c in ("eigh", "svd")]
    middle = [Case(c, 64, 256, 0.8) for c in CALLS]
    large = [Case(c, n, 1, 1.1) for n in (512, 2048) for c in ("cholesky", "solve")]
    large += [Case(c, n, 1, 1.6) for n in (512, 2048) for c in ("qr", "eigh", "svd")]
    return small + middle + large


def _matrices(rng: np.random.Generator, s: Sizes) -> tuple:
    """Positive definite matrices with eigenvalues that are apart, and right-hand sides."""
    n, batch = s["n"], s["batch"]
    x = rng.standard_normal((batch, n, n), np.float32) * np.float32(0.3 / n)
    x = (x + np.swapaxes(x, -1, -2)) / 2 + np.diag(1 + np.arange(n, dtype=np.float32))
    return x.astype(np.float32), rng.standard_normal((batch, n, min(n, 4)), np.float32)


def _workloads(case: Case) -> list[Workload]:
    sizes = {"n": case.n, "batch": case.batch}
    quick = {"n": min(case.n, 16), "batch": min(case.batch, 8)}
    what = f"{case.call} of {case.batch} matrices of {case.n}"
    return [
        Workload(name, title, _matrices, sizes, quick, case.bar)
        for name, title in (
            (case.name, what),
            (case.name + GRADIENT, f"{what}, value and gradient"),
        )
    ]


LINALG_WORKLOADS = {w.name: w for case in _cases() for w in _workloads(case)}
VALUES = frozenset(n for n in LINALG_WORKLOADS if not n.endswith(GRADIENT))


def linalg_program(library: Any, name: str) -> Function:
    """The function of a workload's inputs."""
    call = CALLS[name.removeprefix(PREFIX).partition("_")[0]]
    xp = library.xp

    def loss(x: Any, b: Any) -> Any:
        return sum((y * y).sum() if y.ndim < 2 else (y * y * y).sum() for y in call(xp, x, b))

    if name in VALUES:
        return library.jit(lambda x, b: call(xp, x, b))
    return library.value_and_grad(loss)
