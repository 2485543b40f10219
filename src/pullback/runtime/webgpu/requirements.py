"""Errors that depend on values: an array passes, and the first flag that is not set is noted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from pullback.compile.kernel.lower import copy_kernel
from pullback.compile.program.convolution import strides_of
from pullback.compile.program.matrices import failure
from pullback.compile.program.nest import coalesce
from pullback.compile.program.stages import Stage
from pullback.compile.program.target import Area, Fault, Place
from pullback.core.avals import Aval, dense_strides
from pullback.runtime.webgpu.maps import map_steps
from pullback.runtime.webgpu.nests import MAIN, THREADS, locate, nest_words
from pullback.runtime.webgpu.stages import (
    At,
    Binding,
    Dispatch,
    fault_words,
    linear_groups,
    stage,
)

__all__ = ["require_faults", "require_stages"]


@cache
def _source(rank: int) -> str:
    """Words: flags, their nest. Arrays: the words of the error, flags."""
    return "\n".join([
        MAIN,
        locate(rank, ["at"], 1, "i"),
        "  if (load1(at) == 0u && load0(3u) == 0u) { _ = max0(0u, ~i); }",
        "}",
    ])  # fmt: skip


def require_stages(
    operands: Sequence[Place], static: Mapping[str, Any], result: Place, area: Area, code: int
) -> list[Stage]:
    """The stages that copy x and look at flags."""
    (x_slot, x), (flags_slot, flags) = operands
    slot, out = result
    if out.size == 0:
        return []
    dense = [dense_strides(out.shape)]
    copies = map_steps(
        copy_kernel(out.dtype), out.shape, [At(slot)], dense, [At(x_slot)], [strides_of(x)]
    )
    if flags.size == 0:
        return stage(*copies)
    nest = coalesce(flags.shape, [strides_of(flags), dense_strides(flags.shape)])
    words = (flags.size, *nest_words(nest, 1))
    arrays = (Binding(fault_words(code), "u32", "atomic"), Binding(At(flags_slot), "u8"))
    groups = linear_groups(flags.size, THREADS)
    look = Dispatch(_source(len(nest.shape)), arrays, words, groups, checked=True)
    return stage(*copies, look)


def require_faults(
    avals: Sequence[Aval], static: Mapping[str, Any], result: Aval
) -> list[tuple[str, Fault]]:
    """What its error code stands for."""
    return [failure("require", avals, static, result)]
