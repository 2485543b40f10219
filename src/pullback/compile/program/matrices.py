"""What primitives of linear algebra say about a matrix of a batch that they can't work with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pullback.compile.kernel.factor_order import JACOBI, SMALL
from pullback.core import errors
from pullback.core.avals import Aval

__all__ = ["JACOBI_NAMES", "NAMES", "Failure", "batch_of", "failure", "is_small"]

_NO_VALUES = "has eigenvalues that were not found."
_NO_SINGULAR = "has singular values that were not found."
_NO_EIGH = "has eigenvalues that were not found: {value} off-diagonal elements did not vanish."
_FACTS = {  # with {value}: what the kernel says beside the position, {before}: one less
    "cholesky": "is not positive definite: its leading minor of order {value} is not positive.",
    "solve_triangular": "is singular: element {before} of its diagonal is 0.",
    "lu": "",
    "lu_solve": "is singular: pivot {before} of its factorisation is 0.",
    "det": "",
    "cofactors": "",
    "ldl": "is singular: its factors are not finite.",
    "qr": "",
    "eigh": _NO_EIGH,
    "eigvalsh": _NO_EIGH,
    "svd": _NO_SINGULAR,
    "svdvals": _NO_SINGULAR,
    "eig": _NO_VALUES,
    "eigvals": _NO_VALUES,
    "schur": _NO_VALUES,
    "sylvester": (
        "has an eigenvalue whose negative is one of the other matrix: there is no solution."
    ),
    "expm": "",
    "sqrtm": "",
    "logm": "",
}
NAMES = tuple(_FACTS)  # of the intrinsics, without "require"
_FLAT = ("qr", "eigh", "eigvalsh", "svd", "svdvals", "eig", "eigvals")  # all parts are in one row
_NUMBERS = ("det",)
JACOBI_NAMES = ("eigh", "eigvalsh", "svd", "svdvals")


class Failure(NamedTuple):
    """What can go wrong with a matrix of a batch of this shape."""

    fact: str
    batch: tuple[int, ...]
    subject: str = "the matrix"
    kind: str = "LinAlgError"

    def error(self, name: str, position: int, value: int) -> errors.PullbackError:
        """What the operation `name` says of the matrix at a position of the batch."""
        where = self.subject
        if self.batch:
            index = [int(i) for i in np.unravel_index(position, self.batch)]
            where += f" at {index[0] if len(index) == 1 else tuple(index)} of the batch"
        fact = self.fact.format(value=value, before=value - 1)
        return getattr(errors, self.kind)(f"{name}: {where} {fact}")


def batch_of(name: str, out: Aval) -> tuple[int, ...]:
    """The shape of the batch: a result is a matrix, a number, or all parts of it are in one row."""
    if name in _NUMBERS:
        return out.shape
    return out.shape[:-1] if name in _FLAT else out.shape[:-2]


def failure(
    name: str, avals: Sequence[Aval], static: Mapping[str, Any], out: Aval
) -> tuple[str, Failure]:
    """The operation that an error names, and what it says."""
    if name == "require":
        what = static["fact"], avals[1].shape, static["subject"], static["error"]
        return static["caller"], Failure(*what)
    return static.get("caller", name), Failure(_FACTS[name], batch_of(name, out))


def is_small(name: str, avals: Sequence[Aval]) -> bool:
    """Whether the matrices of a batch are worked on side by side, undivided: real ones of few rows,
    by kernels of our own.
    """
    dtype, (rows, n) = avals[0].dtype, avals[0].shape[-2:]
    if dtype.is_complex or rows != n or not 1 <= n <= SMALL:
        return False
    if name in ("lu_solve", "solve_triangular"):
        return avals[1].shape[-1] <= SMALL
    return name in ("cholesky", "lu", "det", "cofactors") or (name in JACOBI_NAMES and n <= JACOBI)
