"""Which groups of a program wait for which."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from pullback.compile.program.slots import LoopSlots
from pullback.compile.program.waits import MOST, round_waits, waits_of
from pullback.compile.schedule.groups import Access, MapGroup, Stored
from pullback.core.avals import aval, device
from pullback.core.dtypes import float32

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


def mapped(reads: list[Access], writes: list[Access], shape: tuple[int, ...]) -> Any:
    return SimpleNamespace(
        group=MapGroup(shape, reads, writes, []), scratch_nbytes=0, stages=range(1)
    )


def array(name: str, *shape: int, **more: Any) -> Stored:
    return Stored(name, aval(shape, float32, device("cpu")), **more)


def body(steps: list[Any], slots: dict[Stored, int], places: dict[Stored, int], **more: Any) -> Any:
    found = {s: SimpleNamespace(area="arena", offset=at) for s, at in places.items()}
    plan = SimpleNamespace(places=found)
    return SimpleNamespace(
        steps=steps,
        plan=plan,
        base=1000,
        start=0,
        own_slot=slots.get,
        copies=more.get("copies", []),
    )


def test_parts_of_one_array_are_apart():
    x, y = array("x", 4, 6), array("y", 4, 6)
    left = mapped([], [Access(x, 0, (6, 1))], (4, 3))
    right = mapped([], [Access(x, 3, (6, 1))], (4, 3))
    every = mapped([Access(x, 0, (6, 1))], [Access(y, 0, (6, 1))], (4, 6))
    second = mapped([Access(x, 8, (12, 1))], [Access(y, 0, (6, 1))], (2, 3))
    given = body([left, right, every], {}, {x: 0, y: 96})
    assert [after for _, after in waits_of(given)] == [(), (), (1, 0)]
    # columns 2 to 4 of rows 1 and 3 meet both
    assert [a for _, a in waits_of(body([left, right, second], {}, {x: 0, y: 96}))][2] == (1, 0)


def test_rows_that_leave_a_box_are_whole_arrays():
    x = array("x", 4, 6)
    flat = mapped([], [Access(x, 0, (1,))], (12,))
    right = mapped([], [Access(x, 3, (6, 1))], (4, 3))
    assert [after for _, after in waits_of(body([flat, right], {}, {x: 0}))] == [(), (0,)]


def test_rounds_meet_in_what_they_carry():
    carry, new, row = array("c", 4, origin="input"), array("n", 4), array("y", 4)
    step = mapped([Access(carry, 0, (1,))], [Access(new, 0, (1,))], (4,))
    keep = mapped([Access(new, 0, (1,))], [Access(row, 0, (1,))], (4,))
    loop = LoopSlots(moves={7: 16}, carries={5: (6, 16)})
    slots = {carry: 5, new: 6, row: 7}
    found = round_waits(body([step, keep], slots, {}), loop)
    # the next step reads what this one wrote, and writes what this one read; rows are apart
    assert [(w.after, w.again) for w in found] == [((), (0,)), ((0,), ())]


def test_copies_in_the_end_of_a_round_are_groups():
    carry, new = array("c", 4, origin="input"), array("n", 4)
    step = mapped([Access(carry, 0, (1,))], [Access(new, 0, (1,))], (4,))
    copy = SimpleNamespace(source=new, slot=7, stages=2)
    given = body([step], {carry: 5, new: 6}, {}, copies=[copy])
    found = round_waits(given, LoopSlots(moves={7: 16}, carries={5: (6, 16)}))
    assert [w.nodes for w in found] == [1, 2]
    assert found[1].after == (0,)
