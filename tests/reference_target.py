"""A target that interprets programs with NumPy: what a target has to do, and an oracle for others.

Buffers are arrays of bytes, a slot is a buffer and an offset, and the code of a stage is a Python
function of all slots. Nothing here is taken from another runtime.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from pullback.compile.kernel import order
from pullback.compile.kernel.forms import Gather, Map, MultiMap, Reduce, Scatter
from pullback.compile.program.index_plans import PlanCache
from pullback.compile.program.stages import Blocks, Branch, Loop, Node, Parts, Program, Stage, While
from pullback.compile.program.target import IndexArrays, Target, Tuning, no_flat_programs
from pullback.core.avals import Aval, dense_strides
from pullback.core.dtypes import ALL, DType
from pullback.ir.scalar import Expr
from pullback.runtime.base import Runtime
from reference_arrays import (
    Array,
    Found,
    Slots,
    look,
    part,
    places,
    product,
    put,
    read,
    split,
    spread,
    stage,
    values,
)
from reference_routines import ROUTINES, Routines


def elements(kernel: Any, inputs: Sequence[Array], index: Array) -> list[Array]:
    """The element expressions of a fold."""

    def leaf(e: Expr) -> Array:
        return index if e.op == "index" else part(inputs[e.value[0]], e)  # type: ignore[index]

    return values(kernel.element, leaf)


class Rows:
    """Elements of a fold along axis 0, each with a number of parts."""

    def __init__(self, parts: Sequence[Array]):
        self.parts = parts

    def __len__(self) -> int:
        return len(self.parts[0])

    def __getitem__(self, key: slice) -> Rows:
        return Rows([p[key] for p in self.parts])

    def __iter__(self) -> Iterator[list[Array]]:
        return (list(own) for own in zip(*self.parts, strict=True))


def folded(kernel: Reduce, parts: Sequence[Array], length: int) -> list[Array]:
    """The results of a reduction along axis 0."""
    shape = np.broadcast_shapes(*[p.shape for p in parts])[1:]
    rows = Rows([np.broadcast_to(p, (length, *shape)) for p in parts])
    init, join = start(kernel, shape), combined(kernel)
    return finished(kernel, order.tree(rows, join, init))  # type: ignore[arg-type]


def start(kernel: Reduce, shape: tuple[int, ...]) -> Any:
    return [np.broadcast_to(v, shape) for v in values(kernel.init, _nothing)]


def _nothing(e: Expr) -> Array:
    raise AssertionError(e)


def combined(kernel: Reduce) -> Any:
    def join(a: Sequence[Array], b: Sequence[Array]) -> list[Array]:
        sides = {"a": a, "b": b}
        return values(kernel.combine, lambda e: sides[e.value[0]][e.value[1]])  # type: ignore

    return join


def finished(kernel: Reduce, accumulators: Sequence[Array]) -> list[Array]:
    return values(kernel.finish, lambda e: accumulators[e.value[1]])  # type: ignore[index]


class Reference:
    """The target; arguments are those of `Target`."""

    kept = None
    flat = staticmethod(no_flat_programs)
    kept = None
    flat = staticmethod(no_flat_programs)
    tuning = Tuning(
        1 << 17, 1 << 19, 64, 1 << 16, 400_000, 8, 4, 1 << 20, 1 << 16, 1 << 16, 1 << 15
    )

    def map(self, kernel: Map | MultiMap, shape: Any, out_slots: Any, out_strides: Any,
            in_slots: Any, in_strides: Any, rows: int = 0, shared: bool = False
            ) -> list[Stage]:  # fmt: skip
        several = isinstance(kernel, MultiMap)
        outputs = kernel.outputs if several else (kernel.output,)
        bodies = kernel.bodies if several else (kernel.body,)

        def run(slots: Slots) -> None:
            ins = read(slots, kernel, in_slots, shape, in_strides)
            index = np.arange(math.prod(shape)).reshape(shape)

            def leaf(e: Expr) -> Array:
                return index if e.op == "index" else part(ins[e.value[0]], e)  # type: ignore

            flat = iter([np.array(v) for v in values([e for b in bodies for e in b], leaf)])
            for s, d, own, body in zip(out_slots, outputs, out_strides, bodies, strict=True):
                put(look(slots, s, d, shape, own), [next(flat) for _ in body])

        return stage(run)

    def box(self, kernel: Map, shape: Any, out_slot: int, out_offset: int, out_strides: Any,
            in_slots: Any, in_strides: Any) -> Stage:  # fmt: skip
        (whole,) = self.map(kernel, shape, [out_slot], [out_strides], in_slots, in_strides)

        def run(slots: Slots) -> None:
            memory, at = slots[out_slot]
            moved = list(slots)
            moved[out_slot] = memory, at + out_offset * kernel.output.itemsize
            whole.code(moved)  # type: ignore[operator]

        return stage(run)[0]

    def reduce(self, kernel: Reduce, kept: Any, reduced: Any, in_slots: Any, in_strides: Any,
               out_slot: int, area: Any, by_rows: bool = False, piece: int = 0,
               shared: bool = False) -> list[Stage]:  # fmt: skip
        kept, reduced = tuple(kept), tuple(reduced)
        length = math.prod(reduced)
        front = [*range(len(kept), len(kept) + len(reduced)), *range(len(kept))]

        def run(slots: Slots) -> None:
            whole = read(slots, kernel, in_slots, (*kept, *reduced), in_strides)
            ins = [x.transpose(front).reshape(length, *kept) for x in whole]
            index = np.arange(length).reshape(length, *[1] * len(kept))
            found = elements(kernel, ins, index)
            full = [np.broadcast_to(p, (length, *kept)) for p in found]
            target = look(slots, out_slot, kernel.output, kept, dense_strides(kept))
            put(target, folded(kernel, full, length))

        return stage(run)

    def accumulate(self, kernel: Any, kept: Any, length: int, in_slots: Any, in_strides: Any,
                   out_slot: int, out_strides: Any, reverse: bool) -> list[Stage]:  # fmt: skip
        kept, turn = tuple(kept), slice(None, None, -1 if reverse else 1)

        def run(slots: Slots) -> None:
            whole = read(slots, kernel, in_slots, (*kept, length), in_strides)
            ins = [np.moveaxis(x, -1, 0)[turn] for x in whole]
            index = np.arange(length)[turn].reshape(length, *[1] * len(kept))
            found = [np.broadcast_to(p, (length, *kept)) for p in elements(kernel, ins, index)]
            target = look(slots, out_slot, kernel.output, (*kept, length), out_strides)
            target = np.moveaxis(target, -1, 0)[turn]
            steps = order.running(Rows(found), combined(kernel), start(kernel, kept))  # type: ignore
            for k, accumulators in enumerate(list(steps)):
                put(target[k, ...], finished(kernel, accumulators))  # type: ignore[arg-type]

        return stage(run)

    def scalar_loop(self, *given: Any) -> list[Stage] | None:
        """Loops are run stage by stage."""

    def rows(self, plan: Any, rows: int, length: int, slot: Any, area: Any) -> list[Stage]:
        kernel = plan.kernel
        slots_of = {k: (slot(p.stored, p.offset), p.stride) for k, p in plan.places.items()}
        targets = [[slot(s, 0) for s in own] for own in (plan.columns, plan.wholes)]

        def run(slots: Slots) -> None:
            kept: dict[int, Array] = {}

            def stream(k: int) -> Array:
                own = kernel.streams[k]
                if own.kind in ("scalar", "buffer"):
                    return kept[k]
                at, step = slots_of[k]
                wide = length if own.kind == "unit" else 1
                return look(slots, at, own.dtype, (rows, wide), (step, 1))

            def write(k: int, parts: Sequence[Array]) -> None:
                own = kernel.streams[k]
                if own.kind in ("scalar", "buffer"):
                    kept[k] = np.empty(
                        (rows, length if own.kind == "buffer" else 1), own.dtype.numpy
                    )
                put(stream(k), parts)

            columns: list[tuple[Reduce, list[Array]]] = []
            wholes: list[tuple[Reduce, list[Array]]] = []
            for p in kernel.passes:
                for k, body in p.scalars:
                    write(k, values(body, lambda e: part(stream(e.value[0]), e)))  # type: ignore
                index = np.arange(length)[None, :]

                def leaf(e: Expr, index: Array = index) -> Array:
                    return index if e.op == "index" else part(stream(e.value[0]), e)  # type: ignore

                def full(body: Sequence[Expr], leaf: Any = leaf) -> list[Array]:
                    return [
                        np.array(np.broadcast_to(v, (rows, length))) for v in values(body, leaf)
                    ]

                stores = [(k, full(body)) for k, body in p.stores]
                folds = [(k, r, full(r.element)) for k, r in p.folds]
                columns += [(r, full(r.element)) for r in p.columns]
                wholes += [(r, full(r.element)) for r in p.wholes]
                for k, parts in stores:
                    write(k, parts)
                for k, r, parts in folds:
                    across = [v.T for v in parts]
                    write(k, [v[:, None] for v in folded(r, across, length)])
            for k, target in kernel.kept:
                source = stream(k)
                put(stream(target), split(source))
            for (r, parts), at in zip(columns, targets[0], strict=True):
                put(look(slots, at, r.output, (length,), (1,)), folded(r, parts, rows))
            for (r, parts), at in zip(wholes, targets[1], strict=True):
                flat = [v.reshape(-1) for v in parts]
                put(look(slots, at, r.output, (), ()), folded(r, flat, rows * length))

        return stage(run)

    def product_rows(self, dtype: DType, sides: Any, a: Any, b: Any, out_slot: int,
                     area: Any) -> Any:  # fmt: skip
        m, n, k = sides

        def run(slots: Slots) -> None:
            left = look(slots, a[0], dtype, (m, k), a[1])
            right = look(slots, b[0], dtype, (k, n), b[1])
            look(slots, out_slot, dtype, (m, n), (n, 1))[...] = product(left, right)

        return stage(run)

    def gather(self, kernel: Gather, shape: Any, x_slot: int, x_strides: Any, indices: IndexArrays,
               out_slot: int, plan: Any) -> list[Stage]:  # fmt: skip
        def run(slots: Slots) -> None:
            at = places(slots, kernel, shape, indices)
            at = at + spread(shape, x_strides)
            low, high = int(at.min(initial=0)), int(at.max(initial=0))
            first = look(slots, x_slot, kernel.dtype, (1 - low,), (-1,))[-1:]  # a view may go back
            whole = as_strided(first, (1 + high - low,), [kernel.dtype.itemsize])
            target = look(slots, out_slot, kernel.dtype, shape, dense_strides(shape))
            target[...] = whole[at - low]

        return stage(run)

    def gather_plan(self, *args: Any) -> None:
        return None

    scatter_plan = gather_plan

    def scatter(self, kernel: Scatter, x: Any, updates: Any, out: Any, indices: IndexArrays,
                area: Any, plan: Any) -> list[Stage]:  # fmt: skip
        (x_shape, x_slot, x_strides), (shape, slot, strides) = x, updates

        def run(slots: Slots) -> None:
            at = places(slots, kernel, shape, indices)
            at = np.broadcast_to(at + spread(shape, out[1]), shape).reshape(-1)
            before = np.array(look(slots, x_slot, kernel.dtype, x_shape, x_strides)).reshape(-1)
            news = np.array(look(slots, slot, kernel.dtype, shape, strides)).reshape(-1)
            target = look(slots, out[0], kernel.dtype, (before.size,), (1,))
            total = before.astype(_accumulator(kernel, before.dtype))
            with np.errstate(all="ignore"):
                for place, new in zip(at.tolist(), news.astype(total.dtype), strict=True):
                    total[place] = self._combined(kernel, total[place], new)
                target[...] = total.astype(before.dtype)

        return stage(run)

    def _combined(self, kernel: Scatter, a: Any, b: Any) -> Any:
        if kernel.sums:
            return a | b if a.dtype == bool else a + b
        sides = {"a": np.asarray(a), "b": np.asarray(b)}
        found = values(kernel.combine, lambda e: split(sides[e.value[0]])[e.value[1]])  # type: ignore
        return found[0] + 1j * found[1] if len(found) > 1 else found[0]

    def plan_arrays(self, *args: Any) -> None:
        return None

    def together(self, function: Callable[..., Any], *args: Any) -> Any:
        return function(*args)

    def encode(self, program: Program, faults: object = ()) -> Callable[..., Any]:
        def run(*buffers: Array) -> Any:
            out = np.zeros(program.out_nbytes, np.uint8)
            slots: Slots = [(b, 0) for b in (out, *buffers)]
            slots += [(np.zeros(n, np.uint8), 0) for n in program.scratch]
            for base, nbytes in program.pointers:
                slots.append((slots[base][0], slots[base][1] + nbytes))
            try:
                play(program.stages, slots)
            except Found as found:
                return found.args
            return out

        return run

    def view(self, buffer: Array, nbytes: int, /) -> Array:
        if nbytes >= 0:
            return buffer[nbytes:]
        first = as_strided(buffer, (1 - nbytes,), (-1,))[-1:]  # a flipped view, flipped back
        return as_strided(first, (len(buffer) - nbytes,), (1,))

    def empty(self, nbytes: int, /) -> Array:
        return np.zeros(nbytes, np.uint8)

    @property
    def routines(self) -> Routines:
        return ROUTINES


def play(nodes: Sequence[Node], slots: Slots) -> None:
    """Run the stages of a program."""
    for node in nodes:
        if isinstance(node, Stage):
            node.code(slots)  # type: ignore[operator]
        elif isinstance(node, Branch):
            memory, at = slots[node.flag]
            play(node.then if memory[at] else node.otherwise, slots)
        elif isinstance(node, Parts):
            for own in node.parts:
                play(own, slots)
        elif isinstance(node, Blocks):
            for slot, nbytes in node.local:
                slots[slot] = np.zeros(nbytes * node.rows, np.uint8), 0
            play(node.members, slots)
        else:
            _loop(node, slots)


def _loop(node: Loop | While, slots: Slots) -> None:
    before, rounds = list(slots), 0
    while isinstance(node, While) or rounds < node.rounds:
        if isinstance(node, While):
            play(node.test, slots)
            memory, at = slots[node.flag]
            if not memory[at]:
                break
        play(node.body, slots)
        for slot, nbytes in node.moves if isinstance(node, Loop) else ():
            slots[slot] = slots[slot][0], slots[slot][1] + nbytes
        for slot, spare, _ in node.carries:
            slots[slot], slots[spare] = slots[spare], slots[slot]
        rounds += 1
    slots[:] = before
    for slot, spare, nbytes in node.carries if rounds % 2 else ():
        (to, at), (source, start) = slots[slot], slots[spare]
        to[at : at + nbytes] = source[start : start + nbytes]


def _accumulator(kernel: Scatter, dtype: np.dtype) -> Any:
    """The dtype in which updates are folded."""
    if not (kernel.sums or kernel.fold):
        return dtype
    if dtype == np.float64 and kernel.sums:
        return np.longdouble
    return {"f": np.float64, "V": np.float64, "c": np.complex128}.get(dtype.kind, dtype)


REFERENCE: Target = Reference()  # type: ignore[assignment]


class ReferenceRuntime(Runtime):
    """Memory in NumPy."""

    name = "reference"
    dlpack_device = (1, 0)
    target = REFERENCE
    dtypes = ALL

    def __init__(self):
        self._plans = PlanCache(lambda *_: (0, 0, 0), lambda _: True)

    def from_numpy(self, array: Array, copy: bool) -> Array:
        return np.frombuffer(bytearray(array.tobytes()), np.uint8)

    def to_numpy(self, buf: Array, av: Aval) -> Array:
        found = np.array(self.memory(buf, av, writable=False))
        found.flags.writeable = False
        return found

    def memory(self, buf: Array, av: Aval, *, writable: bool) -> Array:
        return look([(buf, 0)], 0, av.dtype, av.shape, av.strides or dense_strides(av.shape))

    def origin(self, buf: Array) -> Array:
        return buf

    def has_one_owner(self, buf: Array) -> bool:
        return False

    def shares(self, buf: Array) -> bool:
        return False

    def index_plan(self, buf: Array, av: Aval, size: int, by: object) -> None:
        return None

    def index_plans(self) -> PlanCache:
        return self._plans

    def capabilities(self) -> dict[str, str]:
        return {}
