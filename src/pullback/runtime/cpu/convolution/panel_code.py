"""Weights of convolution in panels, and back: vectors of output channels side by side.

A panel has blocks of input channels, a block has kernel positions, and a position has the block's
channels, each with one or two vectors of output channels.
"""

from __future__ import annotations

import functools

from pullback.core.dtypes import DType
from pullback.runtime.cpu.llvm import jit
from pullback.runtime.cpu.llvm.elements import (
    Elements,
    add_move,
    call,
    call_move,
    otherwise,
    product,
)
from pullback.runtime.cpu.llvm.records import NamedParams, Record
from pullback.runtime.cpu.llvm.writer import Function, IRModule

__all__ = [
    "PACK",
    "UNPACK",
    "add_pack",
    "add_unpack",
    "call_pack",
    "call_unpack",
    "pack_kernel",
    "unpack_kernel",
]

_PANELS = "panels ins outs positions block"
PACK = Record("source target", f"{_PANELS} group out into")
UNPACK = Record("source target", f"{_PANELS} chunks size span")

_PACK = (
    ("ptr", "%source"), ("i64", "%in"), ("i64", "%out"), ("ptr", "%places"), ("ptr", "%target"),
    ("i64", "%channels"), ("i64", "%positions"), ("i64", "%outs"),
)  # fmt: skip
_UNPACK = (
    ("ptr", "%source"), ("i64", "%chunks"), ("i64", "%size"), ("ptr", "%target"), ("i64", "%row"),
    ("i64", "%channels"), ("i64", "%positions"), ("i64", "%outs"), ("i64", "%span"),
)  # fmt: skip


def add_pack(module: IRModule, dtype: DType, vectors: int) -> None:
    """The function @pack: one block of a panel, with zeros after the last output channel."""
    f = Function(module, "@pack", _PACK, qualifiers="internal ")
    v = Elements(f, dtype)
    width = vectors * v.lanes
    full = f(f"icmp sge i64 %outs, {width}")
    with f.loop("0", "%channels") as c, f.loop("0", "%positions") as t:
        line = f.add(f.mul(c.i, "%in"), f.int_at("%places", t.i))
        source = v.at("%source", line)
        target = v.at("%target", f.mul(f.add(f.mul(t.i, "%channels"), c.i), str(width)))
        with f.when(full):
            values = [v.one(v.at(source, f.mul("%out", str(m)))) for m in range(width)]
            for m, value in enumerate(values):
                v.store_one(value, v.at(target, str(m)))
        with otherwise(f, full):
            v.clear(target, str(width))
            with f.loop("0", "%outs") as m:
                v.store_one(v.one(v.at(source, f.mul(m.i, "%out"))), v.at(target, m.i))
    f.finish()


def call_pack(f: Function, *values: str) -> None:
    """Calls @pack with the values of its parameters."""
    call(f, "@pack", _PACK, values)


def add_unpack(module: IRModule, dtype: DType, vectors: int) -> None:
    """The function @unpack: one block of a panel, its chunks added in order, into an array whose
    rows are output channels with dense input channels and kernel positions.

    It turns `span` positions at a time in local memory and then writes whole runs.
    """
    f = Function(module, "@unpack", _UNPACK, qualifiers="internal ")
    v = Elements(f, dtype)
    width = vectors * v.lanes
    # An odd number of vectors in a row: rows then do not share the same places of a cache.
    run = f.mul("%channels", "%span")
    pitch = f(f"or i64 {f(f'and i64 {f.add(run, str(2 * width))}, {-2 * width}')}, {width}")
    local = v.local(f.mul(pitch, str(width)))
    with f.loop("0", "%positions", "%span") as part:
        span = f.minimum("%span", f.sub("%positions", part.i))
        with f.loop("0", span) as t, f.loop("0", "%channels") as c:
            line = f.add(f.mul(f.add(part.i, t.i), "%channels"), c.i)
            place = v.at("%source", f.mul(line, str(width)))
            row = v.at(local, f.add(f.mul(c.i, span), t.i))
            for k, total in enumerate(_chunk_sums(v, place, vectors)):
                v.scatter(total, v.at(row, f.mul(pitch, str(k * v.lanes))), pitch)
        whole = f(f"icmp eq i64 {span}, %positions")
        rows = f(f"select i1 {whole}, i64 1, i64 %channels")
        columns = f(f"select i1 {whole}, i64 {f.mul('%channels', span)}, i64 {span}")
        with f.loop("0", "%outs") as m:
            array = (v.at("%target", f.add(f.mul(m.i, "%row"), part.i)), "%positions", "1")
            call_move(f, (v.at(local, f.mul(m.i, pitch)), span, "1"), array, rows, columns)
    f.finish()


def call_unpack(f: Function, *values: str) -> None:
    """Calls @unpack with the values of its parameters."""
    call(f, "@unpack", _UNPACK, values)


def _chunk_sums(v: Elements, place: str, vectors: int) -> list[str]:
    """The vectors at `place` of all chunks, added in order."""
    f = v.f

    def at(pointer: str) -> list[str]:
        return [v.load(v.at(pointer, str(k * v.lanes))) for k in range(vectors)]

    state = [("ptr", v.at(place, "%size")), *[(v.type, value) for value in at(place)]]
    with f.loop("1", "%chunks", carried=state) as chunk:
        pointer, *totals = chunk.carried
        added = [f(f"fadd {v.type} {a}, {b}") for a, b in zip(totals, at(pointer), strict=True)]
        chunk.next = [v.at(pointer, "%size"), *added]
    return chunk.results[1:]


# -- kernels ---------------------------------------------------------------------------------------


class _Unit:
    """A unit of packing or unpacking, (group, panel, block of input channels), and its place."""

    def __init__(self, f: Function, p: NamedParams, number: str, width: str):
        blocks, _ = f.divmod(f.add(p["ins"], f.sub(p["block"], "1")), p["block"])
        panel, block = f.divmod(number, blocks)
        self.group, number = f.divmod(panel, p["panels"])
        self.before = f.mul(block, p["block"])  # input channels of the blocks before
        self.channels = f.minimum(p["block"], f.sub(p["ins"], self.before))
        self.first = f.mul(number, width)  # output channel
        self.outs = f.minimum(width, f.sub(p["outs"], self.first))
        line = f.add(f.mul(panel, p["ins"]), self.before)
        self.place = product(f, line, p["positions"], width)  # in the panels


@functools.cache
def pack_kernel(dtype: DType, vectors: int) -> int:
    """Weights into panels: units are (group, panel, block of input channels).

    Offsets of kernel positions in the array come after the params.
    """
    module = IRModule()
    add_pack(module, dtype, vectors)
    f = Function(module, "@kernel")
    p = NamedParams(f, PACK)
    places, v = p.rest(), Elements(f, dtype)
    source, target = p.pointer("source"), p.pointer("target")
    with f.loop("%lo", "%hi") as unit:
        u = _Unit(f, p, unit.i, str(vectors * v.lanes))
        at = f.add(f.mul(u.group, p["group"]), f.mul(u.before, p["into"]))
        at = f.add(at, f.mul(u.first, p["out"]))
        call_pack(
            f,
            *(v.at(source, at), p["into"], p["out"], places, v.at(target, u.place)),
            *(u.channels, p["positions"], u.outs),
        )
    f.finish()
    return jit.compile_ir(module.text(), ["kernel"])["kernel"]


@functools.cache
def unpack_kernel(dtype: DType, vectors: int) -> int:
    """The sums of chunks, from panels into a dense array: units are those of packing."""
    module = IRModule()
    add_move(module, dtype)
    add_unpack(module, dtype, vectors)
    f = Function(module, "@kernel")
    p, v = NamedParams(f, UNPACK), Elements(f, dtype)
    source, target = p.pointer("source"), p.pointer("target")
    row = f.mul(p["ins"], p["positions"])
    with f.loop("%lo", "%hi") as unit:
        u = _Unit(f, p, unit.i, str(vectors * v.lanes))
        at = f.mul(f.add(f.mul(u.group, p["outs"]), u.first), row)
        at = f.add(at, f.mul(u.before, p["positions"]))
        call_unpack(
            f,
            *(v.at(source, u.place), p["chunks"], p["size"], v.at(target, at), row),
            *(u.channels, p["positions"], u.outs, p["span"]),
        )
    f.finish()
    return jit.compile_ir(module.text(), ["kernel"])["kernel"]
