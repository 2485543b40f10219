"""Many examples at once: a value that stands for one example, computed for all of them.

`Level` looks like a graph to operations: on values that vary from example to example, `bind` asks
it to add an equation, and it computes that at once with the rule of the operation for many
examples. Derivatives belong to the values of one example, and know nothing of the others.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import cache
from sys import _getframe
from typing import Any, NamedTuple
from weakref import ref

from pullback.autodiff.reverse import RecordingMode, zeros
from pullback.core.avals import Aval, symbolic
from pullback.core.errors import PullbackError, TraceError
from pullback.ir.array import Array, Node, make, mode, next_order
from pullback.ir.control import Control
from pullback.ir.graph import Equation, Var, next_serial
from pullback.ir.lowering import Fold, GatherRows, ScatterRows
from pullback.ir.op import Op, bind
from pullback.ir.tracing import Recording, refuse_leaked
from pullback.ops.movement import aligned, broadcast_to, repeated, reshape
from pullback.ops.ranges import positions

__all__ = ["Example", "Level"]


class Example(Var):
    """The value of one example; `value` is the array of all of them, along its first axis."""

    __slots__ = ("level", "value")

    def __init__(self, level: Level, number: int, av: Aval, value: Array):
        super().__init__(level, number, av)
        self.level = level
        self.value = value


class Level(Recording):
    """One call of a function that is mapped over `size` examples."""

    transform = "vmap"

    def __init__(self, name: str, size: int):
        super().__init__(name)
        self.size = size
        self.start = next_order()
        self.captured: dict[Node, None] = {}  # nodes of arrays from outside that were used
        # the traced equations of control flow, by its first output
        self._traced: dict[Var, _Traced | None] = {}
        # handles on these arrays, and what they stood for
        self._handles: dict[int, tuple[ref[Array], Any, Aval, Node | None]] = {}
        self.closed = True

    def within(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The result of a function that computes with values of examples."""
        outside, closed, serial = mode.level, self.closed, next_serial()
        self.level, self.serial = outside, serial  # inside of all that is there by now
        mode.level, self.closed = self, False
        try:
            return function(*args, **kwargs)
        finally:
            mode.level, self.closed = outside, closed

    def holds(self, array: Array) -> bool:
        """Whether an array varies from example to example."""
        return isinstance(array._buf, Var) and array._buf.graph is self

    def example(self, array: Array) -> Any:
        """The value of one example, of an array that has the examples along its first axis."""
        av = array._aval
        var = Example(self, self._count, symbolic(av.shape[1:], av.dtype, av.device), array)
        self._count += 1
        return make(var, var.aval)

    def argument(self, array: Array) -> Any:
        """`example` of an argument of the function."""
        x = self.example(array)
        self._origins[x._buf.number] = ("an argument", None)
        return x

    def refuse_updates(self) -> None:
        """Undo the update of an array from outside by the function, and raise."""
        for known, *was in list(self._handles.values()):
            array: Any = known()
            if array is None or array._buf is was[0] or not self.holds(array):
                continue
            origin = self.origin(array._buf)
            array._buf, array._aval, array._node = was
            raise TraceError(
                f"vmap: `{self.name}` updates a captured tensor in place, got {array._aval},"
                f" {origin}. Each example would write another value: return it from the function."
            )
        self._handles.clear()

    def spread(self, array: Array) -> Any:
        """The array of all examples, without a link to what it was computed from."""
        if self.holds(array):
            value = array._buf.value
            return make(value._buf, value._aval)
        with RecordingMode(False):
            return bind(broadcast_to.op, array, shape=(self.size, *array._aval.shape))

    def add(
        self, op: Any, arrays: Sequence[Array], static: dict[str, Any], outs: Sequence[Aval]
    ) -> list[Any]:
        """The results of an operation for one example, computed for all."""
        if self.closed:
            for a in arrays:
                refuse_leaked(a)
        results = [self.example(v) for v in self._computed(op, arrays, static, outs)]
        self._note(op, results, _getframe(1))
        if isinstance(op, Control):  # a derivative may ask a loop for more outputs
            inputs = tuple([a._buf if self.holds(a) else self.capture(a) for a in arrays])
            outputs = tuple([r._buf for r in results])
            self.equations.append(Equation(op, inputs, static, outputs))
            self._traced[outputs[0]] = _traced_as(results[0], op)
        return results

    def extend(
        self, eq: Equation, arrays: Sequence[Array], static: dict[str, Any], more: Sequence[Aval]
    ) -> None:
        """Compute an equation of control flow again, with further outputs."""
        avals = [*[v.aval for v in eq.outs], *more]
        before = self._traced[eq.outs[0]]
        end = 0 if before is None else len(before.graph.equations)
        found = self._computed(eq.op, arrays, static, avals)
        after = _traced_as(self.example(found[0]), eq.op)
        if before is not None and after is not None and before.graph is after.graph:
            _replace(before.graph, before.equation, after.equation, end)
        self._traced[eq.outs[0]] = after
        more_outs = tuple([self.example(v)._buf for v in found[len(eq.outs) :]])
        eq.become(eq.inputs, static, eq.outs + more_outs)

    def _computed(
        self, op: Any, arrays: Sequence[Array], static: dict[str, Any], outs: Sequence[Aval]
    ) -> list[Any]:
        mapped = [self.holds(a) for a in arrays]
        for a, here in zip(arrays, mapped, strict=True):
            if not here:
                self._handles.setdefault(id(a), (ref(a), a._buf, a._aval, a._node))
                if a._node is not None:
                    self.captured[a._node] = None
        operands = [a._buf.value if here else a for a, here in zip(arrays, mapped, strict=True)]
        with RecordingMode(False):
            if self.size == 0:
                return [zeros(symbolic((0, *av.shape), av.dtype, av.device)) for av in outs]
            if isinstance(op, Control):
                values = op.batch(operands, mapped, self.size, **static)
            else:
                values = [batched(op, operands, mapped, self.size, static)]
        for value, av in zip(values, outs, strict=True):
            if value._aval.shape != (self.size, *av.shape) or value._aval.dtype is not av.dtype:
                raise PullbackError(
                    f"vmap: {op.name} of {self.size} examples must be {av} for each, got"
                    f" {value._aval}."
                )
        return values


class _Traced(NamedTuple):
    """An equation of a function that is being compiled."""

    graph: Recording
    equation: Equation


def _traced_as(example: Any, op: Any) -> _Traced | None:
    """The latest equation of `op` in the compiled function that computes examples, if there is
    one.
    """
    array = example
    while isinstance(array._buf, Example):
        array = array._buf.value
    if not isinstance(array._buf, Var) or not isinstance(array._buf.graph, Recording):
        return None
    graph = array._buf.graph
    found = next((eq for eq in reversed(graph.equations) if eq.op is op), None)
    return None if found is None else _Traced(graph, found)


def _replace(graph: Recording, old: Equation, new: Equation, end: int) -> None:
    """Let `new`, which has the outputs of `old` and more, take its place, with all that has been
    added since `end`; where that needs what is computed in between, both stay.
    """
    place = graph.equations.index(old)
    between = {v for eq in graph.equations[place:end] for v in eq.outs}
    added = graph.equations[end:]
    if new not in added or any(v in between for eq in added for v in eq.inputs):
        return
    count = len(old.outs)
    if [v.aval for v in new.outs[:count]] != [v.aval for v in old.outs]:
        return
    names = dict(zip(new.outs, old.outs, strict=False))
    for eq in added:
        eq.become(tuple([names.get(v, v) for v in eq.inputs]), eq.static, eq.outs)
    new.become(new.inputs, new.static, (*old.outs, *new.outs[count:]))
    graph.equations[end:] = []
    graph.equations[place : place + 1] = added


def batched(
    op: Op, operands: Sequence[Any], mapped: Sequence[bool], size: int, static: dict[str, Any]
) -> Any:
    """The result for all examples, along the first axis; those operands that are `mapped` have one
    too.
    """
    if op.batch == "rows":
        return bind(op, *operands, **static)
    if op.batch == "elementwise":
        ndim = max(x._aval.ndim - here for x, here in zip(operands, mapped, strict=True))
        pairs = zip(operands, mapped, strict=True)
        return bind(op, *[aligned(x, ndim) if here else x for x, here in pairs], **static)
    if callable(op.batch):
        leading = [x if here else shared(x) for x, here in zip(operands, mapped, strict=True)]
        return _by_rule(op, leading, static, size)
    if isinstance(op.lowering, Fold):
        return bind(op, *operands, **_folded(static))
    if isinstance(op.lowering, GatherRows):
        return _gathered(op, operands, mapped, size)
    if isinstance(op.lowering, ScatterRows):
        return _scattered(op, operands, mapped, size)
    raise PullbackError(f"{op.name}: no rule for many examples.")


def shared(x: Any) -> Any:
    """An array that all examples share, with an axis of size 1 for them."""
    return bind(reshape.op, x, shape=(1, *x._aval.shape))


@cache
def _parameters(rule: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(inspect.signature(rule).parameters)


def _by_rule(op: Op, operands: Sequence[Any], static: dict[str, Any], size: int) -> Any:
    """The operation's own rule, with what it asks for by name."""
    values: dict[str, Any] = {**static, "examples": size, "op": op, "static": static}
    count = len(op.names) - op.variadic
    values |= zip(op.names[:count], operands[:count], strict=True)
    if op.variadic:
        values[op.names[-1]] = operands[count:]
    rule: Any = op.batch
    return rule(**{name: values[name] for name in _parameters(rule)})


def _folded(static: dict[str, Any]) -> dict[str, Any]:
    """The static parameters of a fold in rows."""
    if "axes" in static:
        return {**static, "axes": tuple([a + 1 for a in static["axes"]])}
    return {**static, "axis": static["axis"] + 1}


def _rows_of(indices: Sequence[Any], mapped: Sequence[bool]) -> list[Any]:
    return [i if here else shared(i) for i, here in zip(indices, mapped, strict=True)]


def _numbered(indices: Sequence[Any], size: int) -> list[Any]:
    """Indices into arrays, as indices into an array of arrays: the number of the example first."""
    number = positions(size, indices[0]._aval.device)
    rank = indices[0]._aval.ndim
    return [bind(reshape.op, number, shape=(size, *(1,) * (rank - 1))), *indices]


def _gathered(op: Op, operands: Sequence[Any], mapped: Sequence[bool], size: int) -> Any:
    x, indices = operands[0], _rows_of(operands[1:], mapped[1:])
    return bind(op, x, *(_numbered(indices, size) if mapped[0] else indices))


def _scattered(op: Op, operands: Sequence[Any], mapped: Sequence[bool], size: int) -> Any:
    x, updates, *indices = _rows_of(operands, mapped)
    return bind(op, repeated(x, size), repeated(updates, size), *_numbered(indices, size))
