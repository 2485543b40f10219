"""The kernel that runs the steps of a transform on one row, or on as many as there are lanes."""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from pullback.runtime.cpu.llvm import jit
from pullback.runtime.cpu.llvm.builder import index_params
from pullback.runtime.cpu.llvm.writer import Function, IRModule
from pullback.runtime.cpu.native import Stage

__all__ = ["IN", "OUT", "A", "B", "BlockCut", "TransformStep", "bits_of", "driver_stage"]

IN, OUT, A, B = range(4)  # the places of a step: arrays, and buffers of elements
_STEP_WORDS = 12  # of eight bytes: a step's address, its two places, nine arguments
_HEAD = ("in", "out", "spare", "bytes", "grain", "blocks", "width", "lanes", "in_step", "out_step",
         "steps", "steps_at")  # fmt: skip
_STACK_BYTES = 1 << 20  # of both buffers; larger ones lie in memory that a stage brings with it


class TransformStep(NamedTuple):
    """The address of a step's function, its places and arguments (see `passes`)."""

    function: Any
    source: int
    target: int
    args: tuple[Any, ...]


class BlockCut(NamedTuple):
    """How an item of a batch is cut: into so many blocks of at most `width` lanes out of `lanes`,
    with so many bytes from block to block of the input and of the output.
    """

    number: int = 1
    width: int = 1
    lanes: int = 1
    in_step: int = 0
    out_step: int = 0


def bits_of(value: float) -> int:
    """A float64 as an int64 parameter."""
    return struct.unpack("<q", struct.pack("<d", value))[0]


def driver_stage(
    steps: Sequence[TransformStep],
    block: BlockCut,
    batch: Sequence[int],
    strides: tuple[Sequence[int], Sequence[int]],
    slots: tuple[int, int],
    buffer_bytes: int,
    grain: int,
    area: Any,
) -> Stage:
    """The stage of `steps` for every block of a batch; strides of input and output count bytes."""
    units = block.number
    for n in batch:
        units *= n
    grain = max(1, grain)
    spare = -1
    if 2 * buffer_bytes > _STACK_BYTES:
        grain = max(grain, -(-units // 32))
        spare = area(-(-units // grain) * 2 * buffer_bytes)
    outer = index_params(batch, *strides)
    words: list[Any] = []
    for step in steps:
        args = (*step.args, *(0,) * (_STEP_WORDS - 3 - len(step.args)))
        words += (step.function, step.source, step.target, *args)
    at = len(_HEAD) + len(outer)
    head = (*slots, spare, buffer_bytes, grain, *block, len(steps), at)
    return Stage(_driver(), units, grain, (*head, *outer, *words))


@functools.cache
def _driver() -> int:
    module = IRModule()
    f = Function(module, "@kernel")
    p = {name: f.int_at("%params", i) for i, name in enumerate(_HEAD)}
    both = f.mul(p["bytes"], "2")
    here = f(f"icmp slt i64 {p['spare']}, 0")
    size = f(f"select i1 {here}, i64 {both}, i64 64")
    stack = f(f"alloca i8, i64 {size}, align 64")
    slot = f(f"select i1 {here}, i64 0, i64 {p['spare']}")
    spare = f(f"load ptr, ptr {f.element('%ptrs', 'ptr', slot)}")
    task = f(f"udiv i64 %lo, {p['grain']}")
    spare = f.offset(spare, f.mul(task, both))
    buffers = f(f"select i1 {here}, ptr {stack}, ptr {spare}")
    places = f.array("ptr", 4)
    for place, pointer in ((A, buffers), (B, f.offset(buffers, p["bytes"]))):
        f.do(f"store ptr {pointer}, ptr {f.element(places, 'ptr', str(place))}")
    ends = [f(f"load ptr, ptr {f.element('%ptrs', 'ptr', p[name])}") for name in ("in", "out")]
    steps = f.element("%params", "i64", p["steps_at"])
    last = f.mul(p["steps"], str(_STEP_WORDS))
    with f.loop("%lo", "%hi") as unit:
        item, block = f.divmod(unit.i, p["blocks"])
        offsets = _offsets(f, item)
        for place, end, step in ((IN, 0, "in_step"), (OUT, 1, "out_step")):
            pointer = f.offset(ends[end], f.add(offsets[end], f.mul(block, p[step])))
            f.do(f"store ptr {pointer}, ptr {f.element(places, 'ptr', str(place))}")
        lanes = f.minimum(p["width"], f.sub(p["lanes"], f.mul(block, p["width"])))
        with f.loop("0", last, str(_STEP_WORDS)) as i:
            step = f.element(steps, "i64", i.i)
            function = f(f"load ptr, ptr {step}")
            pair = [
                f(f"load ptr, ptr {f.element(places, 'ptr', f.int_at(step, k))}") for k in (1, 2)
            ]
            args = f.element(step, "i64", "3")
            f.do(
                f"call void {function}(ptr {args}, ptr {pair[0]}, ptr {pair[1]},"
                f" i64 {lanes}, i64 {block})"
            )
    f.finish()
    return jit.compile_ir(module.text(), ["kernel"])["kernel"]


def _offsets(f: Function, item: str) -> list[str]:
    """Where input and output of an item of the batch are, in bytes."""
    first = len(_HEAD)
    start = [("i64", item), ("i64", "0"), ("i64", "0")]
    with f.loop("0", f.int_at("%params", first), carried=start) as d:
        axis = f.element("%params", "i64", f.add(f.mul(d.i, "3"), str(first + 1)))
        rest, position = f.divmod(d.carried[0], f.int_at(axis, 0))
        moved = [
            f.add(o, f.mul(position, f.int_at(axis, 1 + k))) for k, o in enumerate(d.carried[1:])
        ]
        d.next = [rest, *moved]
    return d.results[1:]
