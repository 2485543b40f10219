"""Stages of groups that are alike, made once: they differ by their slots alone.

Most large graphs repeat themselves, as the layers of a network do. Stages are made with holes in
the place of slots, and a hole can be put into the params of a stage and nothing else: who compares
it, or computes with it, gets a TypeError, and then stages are made for each group by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NoReturn

from pullback.compile.program.stages import Node, Stage

__all__ = ["Templates"]

Scratch = Callable[[int], Any]
Make = Callable[[Sequence[Any], Scratch], Any]  # stages, or None where a target has none


class _Hole:
    """Stands for a slot that is not known yet."""

    __slots__ = ("number",)

    def __init__(self, number: int):
        self.number = number

    def _refuse(self, *_: object) -> NoReturn:
        raise TypeError("a hole in a template was looked at")

    __eq__ = __bool__ = __repr__ = __format__ = _refuse  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]


class _Template:
    """Stages with holes, and the bytes of the scratch areas that follow the given slots."""

    def __init__(self, count: int, make: Make):
        self.areas: list[int] = []
        holes = [_Hole(k) for k in range(count)]

        def scratch(nbytes: int) -> _Hole:
            self.areas.append(nbytes)
            return _Hole(count + len(self.areas) - 1)

        made = make(holes, scratch)
        self.stages = None if made is None else [_with_places(node) for node in made]

    def filled(self, slots: Sequence[int], scratch: Scratch) -> list[Stage] | None:
        """The stages on these slots."""
        if self.stages is None:
            return None
        values = [*slots, *map(scratch, self.areas)]
        found = []
        for (code, units, grain, params), places in self.stages:
            own = list(params)
            for at, number in places:
                own[at] = values[number]
            found.append(Stage(code, units, grain, tuple(own)))
        return found


def _with_places(node: Node) -> tuple[Stage, list[tuple[int, int]]]:
    """A stage, and where among its params which hole is."""
    if type(node) is not Stage:
        raise TypeError("a template has no structure")
    params: Sequence[Any] = node.params
    return node, [(at, word.number) for at, word in enumerate(params) if type(word) is _Hole]


class Templates:
    """The templates of one program, by all that they depend on but slots.

    Only a target with `slots_in_params` has any.
    """

    def __init__(self, slots_in_params: bool):
        self._slots_in_params = slots_in_params
        self._known: dict[Hashable, _Template | None] = {}

    def stages(self, key: Hashable, slots: Sequence[int], scratch: Scratch, make: Make) -> Any:
        """What `make(slots, scratch)` gives; for equal keys it does so but for the slots."""
        if not self._slots_in_params:
            return make(slots, scratch)
        if key not in self._known:
            try:
                self._known[key] = _Template(len(slots), make)
            except TypeError:
                self._known[key] = None
        template = self._known[key]
        return make(slots, scratch) if template is None else template.filled(slots, scratch)
