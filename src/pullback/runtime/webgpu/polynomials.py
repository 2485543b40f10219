"""Polynomials in scalar expressions: chains of multiply-adds that are printed as loops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from pullback.core import dtypes as dt
from pullback.ir.scalar import Expr

__all__ = ["Chain", "chains_of"]

LEAST_STEPS = 3  # of a polynomial that is worth a loop


class Chain(NamedTuple):
    """A polynomial: from `first` on, a product with x and the sum with a coefficient, in turns."""

    first: Expr
    x: Expr
    coefficients: list[object]


def chains_of(roots: Sequence[Expr]) -> dict[Expr, Chain]:
    """The polynomials in float64, by their last steps, whose other steps nobody else reads.

    A multiply-add of these is a hundred operations, which compilers write out for each step.
    """
    seen: set[Expr] = set()
    readers: Counter[Expr] = Counter(roots)
    stack = list(roots)
    while stack:
        e = stack.pop()
        if e not in seen:
            seen.add(e)
            readers.update(e.args)
            stack.extend(e.args)
    inside: set[Expr] = set()
    found: dict[Expr, Chain] = {}
    for e in sorted((e for e in seen if _is_step(e)), key=_depth, reverse=True):
        first, steps = e.args[0], [e]
        while _is_step(first) and readers[first] == 1 and first.args[1] is e.args[1]:
            steps.append(first)
            first = first.args[0]
        if e not in inside and len(steps) >= LEAST_STEPS:
            inside.update(steps)
            coefficients = [s.args[2].value for s in reversed(steps)]
            found[e] = Chain(first, e.args[1], coefficients)
    return found


def _is_step(e: Expr) -> bool:
    return e.op == "fma" and e.dtype is dt.float64 and e.args[2].op == "const"


def _depth(e: Expr) -> int:
    """How many multiply-adds follow each other: the last step of a polynomial has most."""
    depth = 0
    while _is_step(e):
        depth, e = depth + 1, e.args[0]
    return depth
