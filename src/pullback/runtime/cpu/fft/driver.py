"""The kernel that runs the steps of a transform on one row, or on as many as there are lanes."""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from pullback.runtime.cpu.llvm import jit
from pullback.runtime.cpu.llvm.builder import index_params
from pullback.runtime.cpu.llvm.records import NamedParams, Params, Record, batch_offsets
from pullback.runtime.cpu.llvm.writer import Function, IRModule
from pullback.runtime.cpu.native import Stage

__all__ = ["IN", "OUT", "A", "B", "BlockCut", "TransformStep", "bits_of", "driver_stage"]

IN, OUT, A, B = range(4)  # the places of a step: arrays, and buffers of elements
_ARGS = 9  # words of a step for its args: room for the longest record of any, which has seven
STEP = Record("", "function source target arg[args]", args=_ARGS)
# `spare` is a slot, or -1 if both buffers of `nbytes` lie on the stack. A batch follows, and then
# the steps.
DRIVER = Record(
    "input output", "spare nbytes grain blocks width lanes in_step out_step steps steps_at"
)
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
        args = (*step.args, *(0,) * (_ARGS - len(step.args)))
        words += STEP.packed(
            function=step.function, source=step.source, target=step.target, arg=args
        )
    source, target = slots
    head = DRIVER.packed(
        input=source, output=target, spare=spare, nbytes=buffer_bytes, grain=grain,
        blocks=block.number, width=block.width, lanes=block.lanes, in_step=block.in_step,
        out_step=block.out_step, steps=len(steps), steps_at=len(DRIVER) + len(outer),
    )  # fmt: skip
    return Stage(_driver(), units, grain, (*head, *outer, *words))


@functools.cache
def _driver() -> int:
    module = IRModule()
    f = Function(module, "@kernel")
    p = NamedParams(f, DRIVER)
    both = f.mul(p["nbytes"], "2")
    here = f(f"icmp slt i64 {p['spare']}, 0")
    size = f(f"select i1 {here}, i64 {both}, i64 64")
    stack = f(f"alloca i8, i64 {size}, align 64")
    slot = f(f"select i1 {here}, i64 0, i64 {p['spare']}")
    spare = f.pointer_in(slot)
    task = f(f"udiv i64 %lo, {p['grain']}")
    spare = f.offset(spare, f.mul(task, both))
    buffers = f(f"select i1 {here}, ptr {stack}, ptr {spare}")
    places = f.array("ptr", 4)
    for place, pointer in ((A, buffers), (B, f.offset(buffers, p["nbytes"]))):
        f.do(f"store ptr {pointer}, ptr {f.element(places, 'ptr', str(place))}")
    ends = [p.pointer("input"), p.pointer("output")]
    steps = f.element("%params", "i64", p["steps_at"])
    last = f.mul(p["steps"], str(len(STEP)))
    with f.loop("%lo", "%hi") as unit:
        item, block = f.divmod(unit.i, p["blocks"])
        offsets = batch_offsets(f, len(DRIVER), item, 2)
        for place, end, step in ((IN, 0, "in_step"), (OUT, 1, "out_step")):
            pointer = f.offset(ends[end], f.add(offsets[end], f.mul(block, p[step])))
            f.do(f"store ptr {pointer}, ptr {f.element(places, 'ptr', str(place))}")
        lanes = f.minimum(p["width"], f.sub(p["lanes"], f.mul(block, p["width"])))
        with f.loop("0", last, str(len(STEP))) as i:
            step = Params(f, STEP, f.element(steps, "i64", i.i))
            function = step.address("function")
            pair = [
                f(f"load ptr, ptr {f.element(places, 'ptr', step[name])}")
                for name in ("source", "target")
            ]
            args = step.place(("arg", 0))
            f.do(
                f"call void {function}(ptr {args}, ptr {pair[0]}, ptr {pair[1]},"
                f" i64 {lanes}, i64 {block})"
            )
    f.finish()
    return jit.compile_ir(module.text(), ["kernel"])["kernel"]
