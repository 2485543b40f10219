"""Exact sums by integer atomics in device memory, for any number of rows and any width."""

from __future__ import annotations

from pullback.compile.kernel.fixed_point import limb_bits, limb_count
from pullback.runtime.cuda.scatter.recipes import (
    EXPONENTS,
    PROCESSORS,
    Case,
    Recipe,
    ScatterStep,
    ceil_div,
    source_of,
)

__all__ = ["atomic_recipe"]

THREADS = 256  # of a thread block: eight of these fill a processor's 2048


def _grid(elements: int, each: int) -> tuple[int, int]:
    return max(1, min(PROCESSORS * 16, ceil_div(elements, THREADS * each))), 1


def atomic_recipe(case: Case) -> Recipe:
    """The launches: the range of values, cleared limbs, additions, the results."""
    source = source_of(("exact", "atomic"), case.value, case.index_dtype, "add", ())
    values, destinations = case.n * case.width, case.rows * case.width
    bits = limb_bits(case.n + 1)
    limbs = limb_count(case.n + 1, *EXPONENTS)
    steps = [
        ("exact_range", max(values, destinations), ("value", "out", "slot", values, destinations)),
        ("exact_clear", destinations, ("limbs", "flags", "slot", bits, destinations)),
        (
            "exact_add",
            values,
            ("index", "value", "limbs", "flags", "slot", bits, case.n, case.rows, case.width),
        ),
        ("exact_finish", destinations, ("limbs", "flags", "out", "slot", bits, destinations)),
    ]
    return Recipe(
        tuple(
            ScatterStep(source, name, _grid(size, 4), THREADS, 0, arguments)
            for name, size, arguments in steps
        ),
        (("limbs", 8 * limbs * destinations), ("flags", 4 * destinations)),
    )
