"""The numbers of a window as words of a dispatch: see `program.windows`."""

from __future__ import annotations

from collections.abc import Sequence

from pullback.compile.program.windows import AXIS, WINDOW

__all__ = ["OWN", "split_index", "sum_of", "word"]

_WINDOW: list[str] = [*WINDOW.split()]
_AXIS: list[str] = [*AXIS.split()]
OWN = len(_WINDOW) + 3 * len(_AXIS)  # words of a window, which are the first ones


def word(name: str, axis: int | None = None) -> str:
    """A number of the whole, or of an axis."""
    if axis is None:
        return f"arg({_WINDOW.index(name)}u)"
    return f"arg({len(_WINDOW) + len(_AXIS) * axis + _AXIS.index(name)}u)"


def sum_of(name: str, positions: Sequence[str]) -> str:
    """The numbers of that name of all axes, times a position on each."""
    return " + ".join(f"{p} * {word(name, d)}" for d, p in enumerate(positions))


def split_index(index: str, sizes: Sequence[str], names: Sequence[str]) -> list[str]:
    """Statements that let variables be the row-major coordinates of an index."""
    lines = [f"var rest = {index};"]
    for name, size in zip(reversed(names[1:]), reversed(sizes[1:]), strict=True):
        lines += [f"let {name} = rest % {size};", f"rest /= {size};"]
    return [*lines, f"let {names[0]} = rest;"]
