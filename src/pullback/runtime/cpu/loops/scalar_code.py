"""LLVM IR of loops over scalars: values are in registers, and a round calls nobody."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import SupportsIndex

from pullback.compile.kernel.scalar_loops import (
    Body,
    Choice,
    Element,
    Looped,
    Named,
    ScalarLoop,
    Step,
)
from pullback.core.dtypes import DType
from pullback.ir.scalar import Expr, load
from pullback.runtime.cpu import native
from pullback.runtime.cpu.llvm import jit
from pullback.runtime.cpu.llvm.printer import emit
from pullback.runtime.cpu.llvm.records import Params, Record
from pullback.runtime.cpu.llvm.writer import Function, IRModule, LoopOperand, register

__all__ = ["scalar_loop_stages"]
__tuning__ = ("ROUNDS",)

# A look for an interrupt takes as long as ten short rounds, and a thousand long ones a millisecond.
ROUNDS = 1000  # of any loop between two looks for an interrupt


def scalar_loop_stages(
    kernel: ScalarLoop,
    in_slots: Sequence[int],
    rows: Sequence[tuple[int, int]],
    out_slots: Sequence[int],
    columns: Sequence[tuple[int, int]],
) -> list[native.Stage]:
    """The stage of a loop; rows and columns are a slot and the elements from one to the next."""
    rounds = kernel.loop.rounds
    params = _record(kernel).packed(
        input=in_slots, output=out_slots, rounds=rounds,
        **_moving("row", rows, kernel.rows, rounds, kernel.reverse),
        **_moving("column", columns, kernel.columns, rounds, kernel.reverse),
    )  # fmt: skip
    return [native.Stage(_code(kernel), 1, 1, params)]


@lru_cache(jit.KEPT)
def _record(kernel: ScalarLoop) -> Record:
    """The params: arrays that move have the offset of the first round, and bytes to the next."""
    return Record(
        "input[inputs]",
        "(*row row_start row_step)[rows] *output[outputs]"
        " (*column column_start column_step)[columns] rounds",
        inputs=len(kernel.inputs),
        rows=len(kernel.rows),
        outputs=len(kernel.outputs),
        columns=len(kernel.columns),
    )


def _moving(
    name: str,
    arrays: Sequence[tuple[int, int]],
    dtypes: Sequence[DType],
    rounds: int,
    reverse: bool,
) -> dict[str, list[int]]:
    """The params of arrays that are read or written from round to round."""
    steps = [step * d.itemsize for (_, step), d in zip(arrays, dtypes, strict=True)]
    starts = [max(rounds - 1, 0) * step if reverse else 0 for step in steps]
    return {
        name: [slot for slot, _ in arrays],
        f"{name}_start": starts,
        f"{name}_step": [-step if reverse else step for step in steps],
    }


def _code(kernel: ScalarLoop) -> SupportsIndex:
    module = IRModule()
    f = Function(module, "@kernel")
    _LoopWriter(f, kernel).write()
    return jit.compile_ir(module.text(), ["kernel"])["kernel"]


class _LoopWriter:
    """Writes the code of a loop."""

    def __init__(self, f: Function, kernel: ScalarLoop):
        self.f, self.kernel = f, kernel
        self.known: dict[Expr, str] = {}
        self.left = str(ROUNDS)  # rounds before the next look
        self.p = Params(f, _record(kernel))

    def moving(self, name: str, which: int) -> tuple[str, str]:
        """Where the first round reads or writes, and the bytes from round to round."""
        p = self.p
        start = self.f.offset(p.pointer((name, which)), p[f"{name}_start", which])
        return start, p[f"{name}_step", which]

    def write(self) -> None:
        f, p, kernel = self.f, self.p, self.kernel
        for number, dtype in enumerate(kernel.inputs):
            self.read(number, dtype, p.pointer(("input", number)))
        rows = [self.moving("row", k) for k in range(len(kernel.rows))]
        outs = [p.pointer(("output", k)) for k in range(len(kernel.outputs))]
        columns = [self.moving("column", k) for k in range(len(kernel.columns))]
        rounds = p["rounds"]
        self.steps(kernel.before)
        self.repeat(kernel.loop, rounds, rows, columns)
        for number, dtype, out in zip(kernel.loop.numbers, kernel.outputs, outs, strict=True):
            parts = [self.known[e] for e in _loads(number, dtype)]
            LoopOperand(dtype, "unit").store(f, out, "0", parts, 1)
        f.finish()

    def read(self, number: int, dtype: DType, pointer: str) -> None:
        values = LoopOperand(dtype, "unit").load(self.f, pointer, "0", 1)
        self.known |= dict(zip(_loads(number, dtype), values, strict=True))

    def values(self, elements: Sequence[Element]) -> list[str]:
        """Registers for all parts of the elements."""
        roots = [e for element in elements for e in element]
        return emit(self.f, roots, 1, self._leaf, self.known)

    def _leaf(self, e: Expr) -> str:
        return "0" if e.op == "index" else self.known[e]  # of the only element

    def steps(self, steps: Sequence[Step]) -> None:
        for step in steps:
            if isinstance(step, Named):
                names = self.values([step.value])
                self.known |= dict(zip(_like(step.number, step.value), names, strict=True))
            elif isinstance(step, Looped):
                self.repeat(step, str(step.rounds), (), ())
            else:
                self.choose(step)

    def body(self, body: Body) -> list[str]:
        self.steps(body.steps)
        return self.values(body.results)

    def repeat(
        self,
        loop: Looped,
        rounds: str,
        rows: Sequence[tuple[str, str]],
        columns: Sequence[tuple[str, str]],
    ) -> None:
        """A loop; it carries its values, how many rounds it has made, and those before a look."""
        f, kernel = self.f, self.kernel
        loads = [e for k, x in zip(loop.numbers, loop.first, strict=True) for e in _like(k, x)]
        first = self.values(loop.first)
        carried = [(register(e.dtype), x) for e, x in zip(loads, first, strict=True)]
        with f.endless([*carried, ("i64", "0"), ("i64", self.left)]) as state:
            *own, made, left = state.carried
            self.known |= dict(zip(loads, own, strict=True))
            self.left = left
            if loop.test is None:
                more = f(f"icmp slt i64 {made}, {rounds}")
            else:
                (more,) = self.body(loop.test)
            body = f.label()
            f.do(f"br i1 {more}, label %{body}, label %{state.done}")
            f.block(body)
            self.look()
            at = [f.offset(start, f.mul(made, step)) for start, step in (*rows, *columns)]
            for k, (dtype, place) in enumerate(zip(kernel.rows, at, strict=False)):
                if rows:
                    self.read(len(kernel.inputs) + k, dtype, place)
            results = self.body(loop.body)
            following, written = results[: len(loads)], results[len(loads) :]
            for dtype, place in zip(kernel.columns, at[len(rows) :], strict=False):
                if columns:
                    parts = [written.pop(0) for _ in range(1 + dtype.is_complex)]
                    LoopOperand(dtype, "unit").store(f, place, "0", parts, 1)
            state.next = [*following, f.add(made, "1"), self.left]
        self.left = left

    def look(self) -> None:
        """Look for an interrupt after so many rounds; one that came ends the kernel."""
        f = self.f
        left = f.sub(self.left, "1")
        due, over, done = f.label(), f.label(), f.label()
        before = f.current
        now = f(f"icmp eq i64 {left}, 0")
        f.do(f"br i1 {now}, label %{due}, label %{done}")
        f.block(due)
        look = f.module.intrinsic(native.LOOK, "void", "ptr")
        f.do(f"call void {look}(ptr %error)")
        stopped = f(f"icmp ne i64 {f.int_at('%error', 0)}, 0")
        go_on = f.label()
        f.do(f"br i1 {stopped}, label %{over}, label %{go_on}")
        f.block(over)
        f.do("ret void")
        f.block(go_on)
        f.do(f"br label %{done}")
        f.block(done)
        self.left = f(f"phi i64 [ {left}, %{before} ], [ {ROUNDS}, %{go_on} ]")

    def choose(self, choice: Choice) -> None:
        f = self.f
        (condition,) = self.values([(choice.condition,)])
        labels, join = [f.label(), f.label()], f.label()
        f.do(f"br i1 {condition}, label %{labels[0]}, label %{labels[1]}")
        sides, begun = [], self.left
        for label, side in zip(labels, (choice.then, choice.otherwise), strict=True):
            f.block(label)
            self.left = begun
            names = self.body(side)
            sides.append((f.current, [*names, self.left]))
            f.do(f"br label %{join}")
        f.block(join)
        (a, ours), (b, theirs) = sides
        results = zip(choice.numbers, choice.then.results, strict=True)
        loads = [e for number, element in results for e in _like(number, element)]
        kinds = [*[register(e.dtype) for e in loads], "i64"]
        names = [
            f(f"phi {kind} [ {x}, %{a} ], [ {y}, %{b} ]")
            for kind, x, y in zip(kinds, ours, theirs, strict=True)
        ]
        *own, self.left = names
        self.known |= dict(zip(loads, own, strict=True))


def _loads(number: int, dtype: DType) -> list[Expr]:
    """What stands for the parts of a value."""
    return [load(number, dtype.real, part) for part in range(1 + dtype.is_complex)]


def _like(number: int, value: Element) -> list[Expr]:
    return [load(number, e.dtype, part) for part, e in enumerate(value)]
