"""What to launch for a gather or a scatter, as data: an executor fills in the addresses.

An argument of a step is an int, or the name of a buffer: "index", "value", "out", "slot", one of a
plan, or one of the recipe's own scratch. The name "aligned" stands for a number: bit 0 says that
the indices start at a multiple of 16 bytes, bit 1 that the values do.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import NamedTuple

from pullback.compile.kernel.scatter_order import accumulator_bytes
from pullback.core import dtypes as dt
from pullback.runtime.cuda.printer import PRELUDE, register

__all__ = [
    "SLOT_BYTES",
    "Case",
    "Recipe",
    "ScatterStep",
    "ceil_div",
    "reciprocal_of",
    "source_of",
    "sum_bytes",
]

SLOT_BYTES = 40  # the struct Slot of the kernels
PROCESSORS = 132  # of the device that grids are to fill, a Hopper; it decides no bit
SHARED_TOTAL = 233_472  # bytes of shared memory of one of its processors
SHARED_MOST = 232_448  # of which a thread block can have so many
RESERVED = 1024  # bytes of it that a thread block has besides its own
EXPONENTS = 128, -149  # float32: all values are less than 2**128, and multiples of 2**-149


class Case(NamedTuple):
    """What a scatter is about: dtypes by name, `n` contributions of `width` elements to `rows`.

    The last two are for schedules: they decide no bit.
    """

    value: str
    index_dtype: str
    fold: str
    n: int
    rows: int
    width: int
    vectors: bool = True  # whether values and destinations start at multiples of 16 bytes
    shared: int = SHARED_MOST  # bytes of shared memory that a thread block can have

    @property
    def value_bytes(self) -> int:
        return dt.as_dtype(self.value).itemsize

    @property
    def index_bytes(self) -> int:
        return dt.as_dtype(self.index_dtype).itemsize

    @property
    def places(self) -> int:
        """Elements of a row, and up to the next power of two."""
        return 1 << (self.width - 1).bit_length()

    @property
    def item_bytes(self) -> int:
        """Of all places of a row."""
        return self.places * self.value_bytes

    def shared_of(self, blocks: int) -> int:
        """Bytes of shared memory for a thread block if so many share a processor."""
        return min(self.shared, SHARED_TOTAL // blocks - RESERVED)


class ScatterStep(NamedTuple):
    """One launch; all thread blocks are on the device at the same time if `together`."""

    source: str
    function: str
    grid: tuple[int, int]
    block: int
    shared: int
    arguments: tuple[str | int, ...]
    together: bool = False


class Recipe(NamedTuple):
    """Launches in order, the bytes of scratch buffers by name, and whether all of "out" is
    written, so that it may hold anything before.
    """

    steps: tuple[ScatterStep, ...]
    scratch: tuple[tuple[str, int], ...] = ()
    writes_all: bool = False


@cache
def _text(name: str) -> str:
    folder = resources.files("pullback.runtime.cuda.scatter") / "kernels"
    return (folder / f"{name}.cu").read_text()


@cache
def source_of(
    parts: tuple[str, ...],
    value: str,
    index: str,
    fold: str,
    definitions: tuple[tuple[str, object], ...],
) -> str:
    """The CUDA C of kernel files for dtypes, a fold and definitions."""
    head = [f"#define {name} {content}" for name, content in definitions]
    head += [f"#define VALUE_{value}", f"#define FOLD_{fold}"]
    head += [f"#define INDEX {register(dt.as_dtype(index))}"]
    return "\n".join([*head, PRELUDE, _text("common"), *map(_text, parts)])


def sum_bytes(value: str, fold: str) -> int:
    """The size of the struct Sum of the kernels."""
    kept = fold == "set" and dt.as_dtype(value).itemsize == 8
    return 16 if kept else accumulator_bytes(value, fold)


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def reciprocal_of(divisor: int) -> tuple[int, int]:
    """Such that the quotient of a number below 2**31 is `number * reciprocal >> 32 + shift`.

    The divisor is at least two. The reciprocal has 32 bits, and is too large by less than
    `divisor / 2**digits` at most.
    """
    digits = (divisor - 1).bit_length()
    return ceil_div(1 << (31 + digits), divisor), digits - 1
