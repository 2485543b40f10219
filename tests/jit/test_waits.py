"""Which groups of a program wait for which."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from pullback.compile.program.waits import MOST, waits_of

SIZE = 64


def frame(*groups: tuple[str, str, int], places: dict[str, tuple[str, int]]) -> Any:
    """A frame of groups (names read, names written, bytes of scratch)."""
    values = {name: _Value(SIZE) for name in APART}
    found = {values[name]: SimpleNamespace(area=a, offset=at) for name, (a, at) in places.items()}
    steps = []
    for reads, writes, scratch in groups:
        group = SimpleNamespace(
            values_read=lambda reads=reads: [values[n] for n in reads],
            values_written=lambda writes=writes: [values[n] for n in writes],
        )
        steps.append(SimpleNamespace(group=group, scratch_nbytes=scratch, stages=range(2)))
    plan = SimpleNamespace(places=found)
    return SimpleNamespace(steps=steps, plan=plan, base=1000, start=0, own_slot=lambda value: None)


class _Value:
    def __init__(self, nbytes: int):
        self.nbytes = nbytes


def after(given: Any) -> list[tuple[int, ...]]:
    found = waits_of(given)
    assert all(count == 2 for count, _ in found)
    return [before for _, before in found]


APART = {name: ("arena", SIZE * k) for k, name in enumerate("abcdefgh")}


def test_a_group_waits_for_what_it_reads_directly():
    # c = f(a), d = f(c), e = g(a), h = (d, e); inputs have no place
    given = frame(("", "a", 0), ("a", "c", 0), ("c", "d", 0), ("a", "e", 0), ("de", "h", 0),
                  places=APART)  # fmt: skip
    assert after(given) == [(), (0,), (1,), (0,), (3, 2)]


def test_memory_that_is_used_again_waits_for_its_readers():
    places = APART | {"d": ("arena", SIZE // 2)}  # meets a and b
    given = frame(("", "a", 0), ("", "b", 0), ("a", "c", 0), ("", "d", 0), places=places)
    assert after(given) == [(), (), (0,), (2, 1)]


def test_areas_are_apart():
    places = {"a": ("out", 0), "b": ("arena", 0)}
    assert after(frame(("", "a", 0), ("", "b", 0), places=places)) == [(), ()]


def test_scratch_is_shared():
    given = frame(("", "a", 8), ("", "b", 0), ("", "c", 8), places=APART)
    assert after(given) == [(), (), (0,)]


def test_long_programs_are_lines():
    assert waits_of(frame(*[("", "a", 0)] * (MOST + 1), places=APART)) == []
