"""The launches of row kernels: all passes at once, then what goes from row to row."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from pullback.compile.kernel.forms import Reduce
from pullback.compile.kernel.order import BLOCK, LANES
from pullback.compile.program.stages import Stage
from pullback.compile.program.target import Area
from pullback.compile.schedule.groups import Stored
from pullback.compile.schedule.row_kernel import RowPlan, Stream
from pullback.ir.scalar import Expr, load, substituted
from pullback.runtime.cuda.fold_kernels import folds_of
from pullback.runtime.cuda.folds import accumulator_bytes, accumulator_size, fold_code
from pullback.runtime.cuda.kernels import parts
from pullback.runtime.cuda.launch import LEAST_COLUMNS, merged
from pullback.runtime.cuda.loops import fold_steps, lanes_steps
from pullback.runtime.cuda.printer import Source
from pullback.runtime.cuda.row_code import THREADS, RowCode, loads_of
from pullback.runtime.cuda.row_functions import PAD
from pullback.runtime.cuda.row_joins import HEAVY_JOIN
from pullback.runtime.cuda.row_printer import row_source
from pullback.runtime.cuda.row_walks import STEP, LaneLayout, chain_of, walk_layout
from pullback.runtime.cuda.stages import At, Either, Step, stage

__all__ = ["Walk", "row_kernel_stages", "shared_bytes"]

__tuning__ = ("WALK_THREADS", "LEAST_TEAMS", "MOST_WALKS", "WALK_LENGTH", "WALK_SHARE")

FEW = 128  # threads of a thread block up to which it has several rows
FEW_ROWS = 32  # with fewer, long rows do not fill a device as one thread block each
FEW_BLOCKS = 4  # of the tree, up to which a row is short: one thread block folds it in any case
LANE_BYTES = 160  # of shared memory for a lane: with more, few threads fit to wait for memory
PROCESSOR_BYTES = 227 << 10  # shared memory of a Hopper's multiprocessor
PROCESSOR_THREADS = 1024  # it is to hold, with 64 registers each
NEAR_BYTES = 32 << 10  # of a thread block's rows, where it has several: others are to fit beside


WALK_THREADS = 768  # of a processor whose blocks walk, so that a thread has 80 registers
LEAST_TEAMS = 3  # of such a block, or it waits for memory
WALK_LENGTH = 512  # elements of a row, or the turns of its team take longer than to read it again
MOST_WALKS = 8  # such blocks of a processor, each of which then has 96 of those threads
RESERVED = 1 << 10  # bytes of shared memory that each of them has for the system
MOST_TEAMS = 15  # a GPU has 16 barriers, and one is that of the whole block
MOST_STREAMS = 40  # of a launch, whose arguments have 4 KB
WALK_SHARE = 0.75  # of such blocks have a lane to walk along, or reading rows again is quicker


def shared_bytes(architecture: str) -> int:
    """The shared memory that a thread block may have on a GPU like "sm_90"."""
    number = int(architecture.removeprefix("sm_"))
    return 64 << 10 if number < 80 else 96 << 10


Body = tuple[Expr, ...]


class Walk(NamedTuple):
    """The shared memory that a thread block may have, and the processors of a GPU."""

    nbytes: int
    processors: int


class _RowLaunches:
    """The launches of a row kernel."""

    def __init__(
        self,
        plan: RowPlan,
        rows: int,
        length: int,
        slot: Callable[[Stored, int], int],
        area: Area,
    ):
        self.plan, self.number, self.length, self.area = plan, rows, length, area
        self.kernel = plan.kernel
        self.places: dict[int, tuple[At, int]] = {}  # of streams: the first row, and a row's stride
        for k, place in plan.places.items():
            self.places[k] = At(slot(place.stored, place.offset)), place.stride
        self.columns = [At(slot(s, 0)) for s in plan.columns]
        self.wholes = [At(slot(s, 0)) for s in plan.wholes]

    def steps(self, most: int, walk: Walk) -> list[Step | Either] | None:
        """All launches; None if that is not how to run this one."""
        if self.kernel.columns:
            found = self._beside() or self._walk(walk)
            if found is not None:
                return found
        columns = self._columns() if self.kernel.columns else []
        own = None if columns is None else self._passes(most)
        return None if own is None or columns is None else [*own, *columns]

    def _passes(self, most: int) -> list[Step] | None:
        """The launch of all passes, and those that join what it leaves; None if rows do not fit."""
        own = RowCode(self.kernel, self._fixed())
        starts, room = own.room(self.length)
        blocks = -(-self.length // BLOCK)
        if self.number < FEW_ROWS and blocks > FEW_BLOCKS:
            return None
        lanes = LANES * (1 << (blocks - 1).bit_length())
        if own.has_fixed and room > lanes * LANE_BYTES and own.joining < HEAVY_JOIN:
            own = replace(own, turns=2)
        threads = min(THREADS, lanes * own.turns)
        together = max(1, 32 // threads)
        while threads * together < FEW and 2 * together * room <= NEAR_BYTES:
            together *= 2
        slots = sum(map(accumulator_bytes, own.folds)) * together * blocks
        shared = together * room + slots
        if shared > most:
            return None
        block = threads * together
        resident = min(PROCESSOR_BYTES // (shared + 1024), PROCESSOR_THREADS // block)
        own = replace(own, bounds=(block, max(1, resident)))
        grid = math.ceil(self.number / together)
        return self._launched(own, grid, block, shared, together, room, starts, [])

    def _fixed(self) -> tuple[bool, ...]:
        """Whether streams are the same for all rows."""
        streams = range(len(self.kernel.streams))
        return tuple(k in self.places and self.places[k][1] == 0 for k in streams)

    def _launched(
        self, own: RowCode, grid: int, block: int, shared: int, together: int, room: int,
        starts: Sequence[int], chains: Sequence[At],
    ) -> list[Step]:  # fmt: skip
        """The launch of all passes, and those that join what is folded over everything."""
        name, source = row_source(own)
        pointers = [self.places[k][0] for k in own.memory]
        steps = [self.places[k][1] for k in own.memory]
        wholes = self.kernel.wholes
        partials = [At(self.area(self.number * accumulator_bytes(r))) for r in wholes]
        words = [self.number, self.length, together, room, together * room, *steps]
        words += starts or [0]
        arguments = (*pointers, *partials, *chains, struct.pack(f"<{len(words)}q", *words))
        found = [Step(source, f"{name}_passes", (grid, 1), block, arguments, shared=shared)]
        for r, out, part in zip(wholes, self.wholes, partials, strict=True):
            found += merge_steps(r, self.number, part, out, self.area)
        return found

    def _walk(self, walk: Walk) -> list[Step | Either] | None:
        """The launches if thread blocks walk along lanes of the rows; see `row_walks`.

        None if there are too few lanes, or too few rows at a time in shared memory.
        """
        columns, blocks = self.kernel.columns, math.ceil(self.number / BLOCK)
        own = RowCode(self.kernel, self._fixed(), walks=True)
        if self.length < WALK_LENGTH or not (own.folds or own.written):
            return None
        grid = LANES * blocks
        parts = math.ceil(self.length / BLOCK)
        threads = LANES * (1 << (parts - 1).bit_length())
        if own.joining < HEAVY_JOIN:
            own = replace(own, turns=2)
        threads *= own.turns
        if threads % 32 or threads > THREADS:
            return None
        starts, room = own.room(self.length)
        streams, gaps = self.kernel.streams, parts * PAD
        near = sorted(filter(own.is_near, own.memory), key=lambda k: -len(own.read[k]))
        row = room + sum(accumulator_bytes(r) for r in own.folds) * parts

        def beside(count: int, kept: Sequence[int]) -> tuple[int, LaneLayout]:
            """The teams of each of so many blocks of a processor, and what follows their rows."""
            most = walk.nbytes // count - RESERVED
            given = [streams[k].dtype for k in kept], columns, self.length, gaps, threads
            teams = (most - STEP - walk_layout(0, *given).end) // row
            teams = min(teams, MOST_TEAMS, WALK_THREADS // count // threads)
            return teams, walk_layout(teams * row, *given)

        # As many blocks of a processor as there are lanes for, and as many weights near as leave
        # each of them enough teams.
        most = min(MOST_WALKS, math.ceil(grid / walk.processors))
        options = (
            (count, near[:n], *beside(count, near[:n]))
            for count in range(most, 0, -1)
            if grid >= WALK_SHARE * _whole(grid, count * walk.processors)
            for n in range(len(near), -1, -1)
        )
        found = next((option for option in options if option[2] >= LEAST_TEAMS), None)
        if found is None:
            return None
        count, kept, teams, layout = found
        block = teams * threads
        own = replace(own, near=tuple(kept), bounds=(block, count))
        chain = chain_of(columns)
        chains = At(self.area(grid * self.length * accumulator_size(chain)))
        steps: list[Step | Either] = [
            *self._launched(
                own, grid, block, layout.end, teams, room, [*starts, *layout.places], [chains]
            )
        ]
        return steps + lanes_steps(chain, self.length, blocks, chains, self.columns, self.area)

    def _beside(self) -> list[Step | Either] | None:
        """The launches of folds from row to row that store what else is made of their elements.

        None if rows are folded, or numbers of rows are made.
        """
        bodies: dict[int, Body] = {}
        folds: list[Reduce] = []
        streams = self.kernel.streams

        def leaf(e: Expr) -> Expr:
            k, part = e.value  # type: ignore[misc]
            return bodies[k][part] if k in bodies else load(k, e.dtype, part)

        for p in self.kernel.passes:
            if p.scalars or p.folds or p.wholes:
                return None
            folds += [replace(r, element=substituted(r.element, leaf)) for r in p.columns]
            made = {k: substituted(body, leaf) for k, body in p.stores}
            bodies |= {k: tuple(parts(body, streams[k].dtype)) for k, body in made.items()}
        stored = [k for k in bodies if k in self.places]
        read = loads_of([e for b in (*(r.element for r in folds), *bodies.values()) for e in b])
        if not stored or self.length < LEAST_COLUMNS or len(read) + len(stored) > MOST_STREAMS:
            return None
        number = {k: n for n, k in enumerate(read)}

        def numbered(e: Expr) -> Expr:
            k, part = e.value  # type: ignore[misc]
            return load(number[k], e.dtype, part)

        kernel = folds_of(
            tuple(streams[k].dtype for k in read),
            [replace(r, element=substituted(r.element, numbered)) for r in folds],
            [(streams[k].dtype, substituted(bodies[k], numbered)) for k in stored],
        )
        strides = [(int(streams[k].kind == "unit"), self.places[k][1]) for k in (*read, *stored)]
        ins, outs = ([self.places[k][0] for k in own] for own in (read, stored))
        return fold_steps(
            kernel, (self.length,), (self.number,), ins, strides, self.columns, self.area, outs
        )

    def _columns(self) -> list[Step | Either] | None:
        """The launches that fold from row to row, after all passes, where these leave them all.

        What they read of the numbers of rows gets a place in memory.
        """
        read = loads_of([e for r in self.kernel.columns for e in r.element])
        streams = list(self.kernel.streams)
        made = {k for p in self.kernel.passes for k, _ in p.stores}
        written = {self.places[k][0] for k in made if k in self.places}
        where = dict(self.kernel.kept)
        for k in read:
            stream = streams[k]
            if stream.kind == "scalar" and k not in where:
                where[k] = len(streams)
                streams.append(Stream(stream.dtype, "zero"))
                self.places[where[k]] = At(self.area(self.number * stream.dtype.itemsize)), 1
        for k in read:
            lost = k not in made and k in self.places and self.places[k][0] in written
            if lost or streams[k].kind == "buffer":
                return None
        self.kernel = replace(self.kernel, streams=tuple(streams), kept=tuple(where.items()))
        number = {k: n for n, k in enumerate(read)}

        def leaf(e: Expr) -> Expr:
            k, part = e.value  # type: ignore[misc]
            return load(number[k], e.dtype, part)

        inputs = tuple(streams[k].dtype for k in read)
        kernels = [replace(r, element=substituted(r.element, leaf)) for r in self.kernel.columns]
        places = [self.places[where.get(k, k)] for k in read]
        strides = [
            (int(streams[k].kind == "unit"), step)
            for k, (_, step) in zip(read, places, strict=True)
        ]
        return fold_steps(
            folds_of(inputs, kernels), (self.length,), (self.number,), [at for at, _ in places],
            strides, self.columns, self.area,
        )  # fmt: skip


def _whole(count: int, many: int) -> int:
    """The next multiple of `many`."""
    return -(-count // many) * many


def row_kernel_stages(
    plan: RowPlan,
    rows: int,
    length: int,
    slot: Callable[[Stored, int], int],
    area: Area,
    most: int,
    walk: Walk,
) -> list[Stage] | None:
    """The stages of a row kernel; None if a row does not fit into `most` bytes, rows are few and
    long, or folds from row to row read what is not kept.
    """
    steps = _RowLaunches(plan, rows, length, slot, area).steps(most, walk)
    return None if steps is None else stage(*steps)


def merge_steps(kernel: Reduce, count: int, partials: At, out: At, area: Area) -> list[Step]:
    """The launches that join so many accumulators to one result."""
    source = Source()
    fold_code(source, kernel, ["merge"])
    launches = merged(kernel, [], 1, count)
    places = {"out0": out, "scratch0": partials}
    for k, nbytes in enumerate(launches.scratch[1:], 1):
        places[f"scratch{k}"] = At(area(nbytes))
    return [
        Step(source.text(), one.function, (one.grid, 1), one.block,
             tuple(places[a] if isinstance(a, str) else a for a in one.arguments))
        for one in launches.launches
    ]  # fmt: skip
