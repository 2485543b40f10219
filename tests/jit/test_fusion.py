"""What runs together, and where values live: groups of known functions, and memory plans."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pullback as pb
from device_programs import numbers_alone
from pullback.compile.schedule.fusion import fuse
from pullback.compile.schedule.groups import (
    CallGroup,
    FoldGroup,
    Grouped,
    MapGroup,
    SequenceGroup,
    Stored,
)
from pullback.compile.schedule.memory import Life, MemoryPlan, Place, plan_memory
from pullback.core.avals import aval
from pullback.core.errors import PullbackError

BLOCK = 1024


def numbers(*shape: int) -> Any:
    return pb.tensor(np.random.default_rng(0).standard_normal(shape).astype("float32"))


def grouped(f: Callable[..., Any], *arrays: Any) -> Grouped:
    return fuse(pb.trace(f)(*arrays), [a._aval for a in arrays])


@pytest.mark.parametrize("shape", [(3, 4), (2, 3000), (300, 40)])
def test_folds_of_numbers_that_are_known(shape: tuple[int, ...]):
    """They read an array all the same, as walks are made by what is read."""
    x = numbers(*shape)
    groups = grouped(numbers_alone, x).groups
    folds = [g for g in groups if isinstance(g, FoldGroup)]
    rows = [g.members for g in groups if isinstance(g, SequenceGroup)]
    folds += [m for members in rows for m in members if isinstance(m, FoldGroup)]
    assert folds
    assert all(f.reads for f in folds)
    for found, expected in zip(pb.jit(numbers_alone)(x), numbers_alone(x), strict=True):
        np.testing.assert_array_equal(found.numpy(), expected.numpy())


def kinds(found: Grouped) -> list[str]:
    names = {MapGroup: "map", FoldGroup: "fold", CallGroup: "call", SequenceGroup: "sequence"}
    return [names[type(g)] for g in found.groups]


def test_a_chain_is_one_kernel() -> None:
    found = grouped(lambda x: pb.tanh(x * 2.0 + 1.0) / pb.sqrt(x), numbers(5, 7))
    assert kinds(found) == ["map"]
    (group,) = found.groups
    assert isinstance(group, MapGroup) and len(group.reads) == 1


def test_a_producer_is_computed_inside_a_reduction() -> None:
    assert kinds(grouped(lambda x: pb.exp(x * x).sum(axis=0), numbers(5, 7))) == ["fold"]


def test_values_needed_twice_are_made_in_one_pass() -> None:
    def f(x: Any) -> Any:
        e = pb.exp(x)
        return e, e * x, pb.sin(x)

    found = grouped(f, numbers(5, 7))
    assert kinds(found) == ["map"] and len(found.groups[0].values_written()) == 3


def test_views_are_strides() -> None:
    found = grouped(lambda x: pb.exp(x).T[::-1, 1:] * 2.0, numbers(5, 7))
    assert kinds(found) == ["map"]
    (group,) = found.groups
    assert isinstance(group, MapGroup)
    assert [(a.offset, a.strides) for a in group.reads] == [(13, (-1, 7))]


def test_what_strides_cannot_express_is_copied() -> None:
    assert kinds(grouped(lambda x: pb.reshape(pb.exp(x).T, (35,)) * 2.0, numbers(5, 7))) == [
        "map",
        "map",
    ]


def test_cheap_values_are_repeated_and_dear_ones_stored() -> None:
    rows = numbers(300, 1)
    cheap = grouped(lambda x, r: x * (r + 1.0), numbers(300, 400), rows)
    dear = grouped(lambda x, r: x * pb.lgamma(r), numbers(300, 400), rows)
    assert kinds(cheap) == ["map"] and kinds(dear) == ["map", "map"]


def test_numbers_are_written_into_the_code() -> None:
    (group,) = grouped(lambda x: x * 2.0 + pb.ones((5, 7)), numbers(5, 7)).groups
    assert isinstance(group, MapGroup) and len(group.reads) == 1


def test_operands_of_library_calls_are_stored_once() -> None:
    found = grouped(lambda x: pb.tanh(x) @ pb.tanh(x).T, numbers(5, 7))
    assert kinds(found)[-1] == "call"


def test_rows_stay_in_cache() -> None:
    def softmax(x: Any) -> Any:
        e = pb.exp(x - pb.max(x, axis=-1, keepdims=True))
        return e / e.sum(axis=-1, keepdims=True)

    found = grouped(softmax, numbers(256, 1024))
    assert kinds(found) == ["sequence"]
    loss = pb.value_and_grad(lambda x: (softmax(x) * x).sum())
    assert kinds(grouped(loss, numbers(256, 1024))) == ["sequence"]


def test_a_value_and_its_gradient_are_one_pass_over_the_data() -> None:
    f = pb.value_and_grad(lambda x: (pb.sin(x) * pb.exp(-x * x)).sum())
    (group,) = grouped(f, numbers(1 << 17)).groups
    assert isinstance(group, SequenceGroup)
    assert [type(m) for m in group.members] == [MapGroup, FoldGroup]
    assert len(group.members[0].values_written()) == 2


def test_small_transposed_matrices_are_not_read_in_pieces_of_everything() -> None:
    """Pieces begin at any element; a map of its own goes through whole matrices."""

    def f(x: Any) -> Any:
        y = x.mT
        return (y * y * y).sum(), 3.0 * y * y

    assert sorted(kinds(grouped(f, numbers(1 << 15, 3, 3)))) == ["fold", "map"]
    assert kinds(grouped(f, numbers(1 << 10, 32, 32))) == ["sequence"]


# -- memory ----------------------------------------------------------------------------------------


def plan_of(f: Callable[..., Any], *arrays: Any) -> MemoryPlan:
    plan = plan_memory(grouped(f, *arrays))
    plan.verify()
    return plan


def test_a_long_chain_of_products_needs_two_places() -> None:
    def f(x: Any) -> Any:
        for _ in range(6):
            x = pb.tanh(x @ x)
        return x

    plan = plan_of(f, numbers(16, 16))
    assert plan.out_nbytes == 16 * 16 * 4
    assert plan.arena_nbytes <= 16 * 16 * 4


def test_a_kernel_may_write_over_its_operand() -> None:
    plan = plan_of(lambda x: pb.exp(x @ x), numbers(16, 16))
    assert plan.arena_nbytes == 0


def test_verify_finds_values_on_top_of_each_other() -> None:
    av = aval((16,), pb.float32, numbers(1)._aval.device)
    a, b = Stored("a", av), Stored("b", av)
    lives = [Life(a, 0, 2, 64), Life(b, 1, 3, 64)]
    with pytest.raises(PullbackError, match="share bytes"):
        MemoryPlan({a: Place("arena", 0), b: Place("arena", 0)}, 64, 0, lives).verify()
    MemoryPlan({a: Place("arena", 0), b: Place("arena", 64)}, 128, 0, lives).verify()


STEPS = {
    "exp": pb.exp,
    "sum": lambda x: x + x.sum(axis=1, keepdims=True),
    "mean": lambda x: x - x.mean(axis=0),
    "matmul": lambda x: x @ x,
    "transpose": lambda x: x.T,
    "cut": lambda x: pb.concat([x[1:], x[:1] * 2.0], axis=0),
    "cumulative": lambda x: pb.cumulative_sum(x, axis=1),
    "twice": lambda x: pb.sin(x) * pb.cos(x.T),
}


@given(st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=8), st.booleans())
def test_any_program_has_a_sound_plan(names: list[str], keep: bool) -> None:
    def f(x: Any) -> Any:
        found = [x]
        for name in names:
            found.append(STEPS[name](found[-1]))
        return tuple(found[1:]) if keep else found[-1]

    plan_of(f, numbers(6, 6))
