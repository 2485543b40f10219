"""The stages of attention on matrix units; operands that rows can't be read from are copied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pullback.compile.kernel.lower import broadcast_strides, copy_kernel
from pullback.compile.program.stages import Stage
from pullback.compile.program.target import Area, Place
from pullback.core.avals import Aval, dense_strides
from pullback.runtime.cuda.attention.steps import (
    FORWARD,
    NUMBERS,
    AttentionProblem,
    Given,
    HeadMatrices,
    tile_of,
)
from pullback.runtime.cuda.loops import map_stages
from pullback.runtime.cuda.stages import At, stage

__all__ = ["LEAST_SHARED", "NAMES", "attention_stages", "has_units", "shared_bytes"]

NAMES = ("attention_forward", "attention_queries", "attention_keys")
# Bytes of shared memory that a thread block may have, by architecture; on others LEAST_SHARED.
SHARED = {"sm_80": 163 << 10, "sm_87": 163 << 10, "sm_90": 227 << 10, "sm_100": 227 << 10}
LEAST_SHARED = 99 << 10  # what sm_86, sm_89 and sm_120 give, the least from sm_80 on
LEAST_ARCHITECTURE = 80  # whose matrix units take bfloat16 and have copies beside the arithmetic


def has_units(architecture: str) -> bool:
    """Whether a GPU like "sm_90" has the matrix units."""
    return int(architecture.removeprefix("sm_")) >= LEAST_ARCHITECTURE


def shared_bytes(architecture: str) -> int:
    """The shared memory that a thread block may have on a GPU like "sm_90"."""
    return SHARED.get(architecture, LEAST_SHARED)


def attention_stages(
    most: int,
    name: str,
    operands: Sequence[Place],
    static: Mapping[str, Any],
    result: Place,
    area: Area,
    _: int,
) -> list[Stage]:
    """The launch of a kernel, after copies; the result is dense.

    A thread block may have `most` bytes of shared memory.
    """
    kernel, before = name.removeprefix("attention_"), []
    count, others = (3, 0) if kernel == FORWARD else (4, 2)
    query, key = operands[0][1], operands[1][1]
    *batch, group, rows, width = query.shape
    columns = key.shape[-2]
    numbers = []
    for slot, av in operands[:count]:
        strides = _strides(av)
        if width % NUMBERS == 0 and not HeadMatrices(At(slot), strides).is_wide():
            slot, strides = _copied(slot, av, area, before)
        if av.ndim < query.ndim:  # the group shares it
            strides = (*strides[:-2], 0, *strides[-2:])
        numbers.append(HeadMatrices(At(slot), strides))
    left = count + others + (static["dropout"] > 0)
    rest = [_dense(p, area, before) for p in operands[count:left]]
    words = rest.pop() if static["dropout"] else None
    mask = None
    for slot, av in operands[left:]:
        mask = HeadMatrices(At(slot), broadcast_strides(av, (*batch, group, rows, columns)))
    given = Given(numbers, rest, mask, words)
    problem = AttentionProblem(
        query.dtype, tuple(batch), group, rows, columns, width, static["factor"],
        static["causal"], static["dropout"], static["heads"],
    )  # fmt: skip
    tile = tile_of(kernel, width, most)
    return [*before, *stage(problem.step(kernel, At(result[0]), given, tile))]


def _dense(place: Place, area: Area, stages: list[Stage]) -> At:
    """Where an array is, or a dense copy of it."""
    slot, av = place
    dense = _strides(av) == dense_strides(av.shape)
    return At(slot if dense else _copied(slot, av, area, stages)[0])


def _strides(av: Aval) -> tuple[int, ...]:
    return dense_strides(av.shape) if av.strides is None else av.strides


def _copied(slot: int, av: Aval, area: Area, stages: list[Stage]) -> tuple[int, tuple[int, ...]]:
    """The slot and the strides of a dense copy, which the stages make."""
    dense, to = dense_strides(av.shape), area(av.nbytes)
    stages += map_stages(copy_kernel(av.dtype), av.shape, [to], [dense], [slot], [_strides(av)])
    return to, dense
