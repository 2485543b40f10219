"""Derivatives of a traced function: values and cotangents as one graph, cut where these come in."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from pullback.autodiff.reverse import cotangents, fresh, with_recording, zeros
from pullback.autodiff.series import expanded
from pullback.compile.function.compiled import Compiled, part
from pullback.compile.function.keys import key_of
from pullback.compile.graph.passes import optimise
from pullback.compile.program.kept import Key
from pullback.core.avals import Aval, symbolic
from pullback.core.errors import TraceError
from pullback.ir.graph import Equation, Graph, Var
from pullback.ir.lowering import Elementwise, View
from pullback.ir.tracing import Recording, recorded

__all__ = ["Flat", "Linearised", "lifted", "pullback_of", "series_of", "symbolic_of"]


class Flat(NamedTuple):
    """A function of flat arrays with fixed types.

    `lifted` are tracked arrays that it captures; they count as inputs after the arguments.
    """

    name: str
    function: Callable[..., list[Any]]
    inputs: list[Aval]
    lifted: list[Any]
    outputs: list[Aval]

    def variables(
        self, arrays: Sequence[Any], places: Sequence[int]
    ) -> tuple[list[Any], list[Any]]:
        """The arguments with fresh variables at `places`, and these; a lifted array is its own."""
        args = list(arrays)
        n = len(self.inputs)
        for i in places:
            if i < n:
                args[i] = fresh(args[i])
        return args, [args[i] if i < n else self.lifted[i - n] for i in places]

    def __call__(self, args: Sequence[Any]) -> list[Any]:
        outs = with_recording(True, self.function, *args)
        types = [symbolic(o._aval.shape, o._aval.dtype, o._aval.device) for o in outs]
        if types != self.outputs:
            raise TraceError(
                f"jit: `{self.name}` gave {types} when it was traced for its derivative, and"
                f" {self.outputs} before. A jitted function must do the same each time."
            )
        return outs


class Linearised:
    """A function and its pullback by the inputs `tracked`.

    `forward` gives the outputs, then the residuals that `backward` reads. `connected` lists the
    outputs that depend on a tracked input; there is one cotangent for each.
    """

    def __init__(self, flat: Flat, tracked: Sequence[int], exact: bool):
        self.name = flat.name
        self._exact = exact
        self.tracked = tuple(tracked)
        self._joint, self.connected, self._found = _joint(flat, tracked)
        self._sizes = len(flat.inputs) + len(flat.lifted), len(flat.outputs)
        self._key = key_of(self._joint, "linearised", exact, self._sizes)
        self._cuts: _CutGraph | None = None
        self._forward: Compiled | None = None
        self._programs: dict[tuple, Compiled] = {}
        self._lock = threading.RLock()

    @property
    def forward(self) -> Compiled:
        """The program of outputs and residuals."""
        if self._forward is None:
            with self._lock:
                if self._forward is None:
                    self._forward = Compiled(lambda: self._cut.forward, key=self._part("forward"))
        return self._forward

    def backward(self, present: tuple[bool, ...], wanted: tuple[bool, ...]) -> Compiled:
        """The program from inputs, residuals and present cotangents to the gradients wanted."""
        found = self._programs.get((present, wanted))
        if found is None:
            with self._lock:
                found = self._programs.get((present, wanted))
                if found is None:
                    key = self._part("backward", present, wanted)
                    found = Compiled(lambda: self._backward(present, wanted), key=key)
                    self._programs[present, wanted] = found
        return found

    def _part(self, *which: Any) -> Key | None:
        return None if self._key is None else self._key.part(*which)

    @property
    def _cut(self) -> _CutGraph:
        """The two parts, simplified; only what is not found on disk asks for them."""
        with self._lock:
            if self._cuts is None:
                self._cuts = _CutGraph.of(self._joint, *self._sizes, self._exact)
            return self._cuts

    def _backward(self, present: tuple[bool, ...], wanted: tuple[bool, ...]) -> Graph:
        cut = self._cut
        given = [v for v, here in zip(cut.cotangents, present, strict=True) if here]
        absent = [v for v, here in zip(cut.cotangents, present, strict=True) if not here]
        gradients = [
            cut.gradients[k]
            for k, here in zip(self._found, wanted, strict=True)
            if here and k is not None
        ]
        inputs = [*cut.forward.inputs, *cut.residuals, *given]
        name = f"{self.name}.pullback"
        if not absent:
            return part(name, inputs, cut.after, gradients, checks=False)
        zero = {id(v): _zero(v) for v in absent}
        equations = [replaced(eq, zero) for eq in cut.after]
        gradients = [zero.get(id(v), v) for v in gradients]
        small = part(name, inputs, equations, gradients, checks=False)
        return optimise(small, self._exact)

    def aligned(self, wanted: tuple[bool, ...], values: Sequence[Any]) -> list[Any]:
        """The results of `backward` for each tracked input; None if zero or not wanted."""
        rest = iter(values)
        pairs = zip(self._found, wanted, strict=True)
        return [next(rest) if here and k is not None else None for k, here in pairs]


class _CutGraph(NamedTuple):
    """A graph of values and gradients, cut where the cotangents come in.

    `forward` gives the outputs and the residuals; `after` are the equations from there on.
    """

    forward: Graph
    cotangents: list[Var]
    gradients: list[Var]
    residuals: list[Var]
    after: list[Equation]

    @staticmethod
    def of(joint: Graph, n: int, m: int, exact: bool) -> _CutGraph:
        """Cut a graph of n inputs and then cotangents, and of m outputs and then gradients."""
        joint = optimise(joint, exact, late=len(joint.inputs) - n)
        primals, cotangents = joint.inputs[:n], joint.inputs[n:]
        outputs, gradients = joint.outputs[:m], joint.outputs[m:]
        before, after = _divided(joint.equations, cotangents)
        residuals, again = _residuals(primals, before, after, gradients)
        forward = part(joint.name, primals, before, outputs + residuals)
        return _CutGraph(forward, cotangents, gradients, residuals, again + after)


def _joint(flat: Flat, tracked: Sequence[int]) -> tuple[Graph, list[int], list[int | None]]:
    """The graph of values, then gradients; the connected outputs; which gradient is whose."""
    joint = Recording(flat.name)

    def record() -> tuple[list[int], list[Any]]:
        args, variables = flat.variables([joint.add_input(av) for av in flat.inputs], tracked)
        outs = flat(args)
        connected = [i for i, o in enumerate(outs) if o._node is not None]
        ends = [outs[i] for i in connected]
        weights = [joint.add_input(o._aval) for o in ends]
        found = cotangents(ends, weights, variables, retain=False, create_graph=False)
        gradients = [g for g in found if g is not None]
        joint.outputs = [joint.capture(o) for o in outs + gradients]
        return connected, found

    connected, found = recorded(joint, record)
    graph = lifted(joint, flat.lifted, len(flat.inputs))
    graph.verify()
    numbers = iter(range(sum(g is not None for g in found)))
    return graph, connected, [None if g is None else next(numbers) for g in found]


def lifted(graph: Graph, arrays: Sequence[Any], place: int) -> Graph:
    """The graph in which the captured `arrays` are inputs, from `place` on, and not constants."""
    inputs = [Var(graph, -1 - i, symbolic_of(x)) for i, x in enumerate(arrays)]
    found: dict[int, Var] = {}
    for v in graph.constants:
        for x, new in zip(arrays, inputs, strict=True):
            if v.constant[0] is x._buf and v.constant[1] is x._aval:
                found[id(v)] = new
    equations = [replaced(eq, found) for eq in graph.equations] if found else graph.equations
    outputs = [found.get(id(v), v) for v in graph.outputs]
    result = part(
        graph.name, graph.inputs[:place] + inputs + graph.inputs[place:], equations, outputs
    )
    for v in result.constants:
        v.constant = (*v.constant[:2], None)
    return result


def symbolic_of(x: Any) -> Aval:
    """The aval of an array as graphs have them."""
    return symbolic(x._aval.shape, x._aval.dtype, x._aval.device)


def _divided(
    equations: Sequence[Equation], cotangents: Sequence[Var]
) -> tuple[list[Equation], list[Equation]]:
    """The equations that can be done before any cotangent is known, and the others."""
    after_ids = {id(v) for v in cotangents}
    before, after = [], []
    for eq in equations:
        if any(id(v) in after_ids for v in eq.inputs):
            after.append(eq)
            after_ids.update(id(v) for v in eq.outs)
        else:
            before.append(eq)
    return before, after


def _residuals(
    primals: Sequence[Var],
    before: Sequence[Equation],
    after: Sequence[Equation],
    gradients: Sequence[Var],
) -> tuple[list[Var], list[Equation]]:
    """What the backward part needs of the forward part: values to keep, and equations to do again.

    A rearrangement of kept elements is done again, and so is an elementwise function of what is
    kept anyway: that costs less than writing its result to memory and reading it back.
    """
    producer = {id(v): eq for eq in before for v in eq.outs}
    read = [v for eq in after for v in eq.inputs] + list(gradients)
    kept = {id(v): v for v in read if id(v) in producer}
    again: set[int] = set()
    for eq in reversed(before):
        lowering = getattr(eq.op, "lowering", None)
        if isinstance(lowering, View) and id(eq.out) in kept:
            (base,), out = eq.inputs, eq.out
            if id(base) not in producer or id(base) in kept or out.aval.size >= base.aval.size:
                del kept[id(out)]
                again.add(id(eq))
                kept.update((id(v), v) for v in eq.inputs if id(v) in producer)
    at_hand = {id(v) for v in primals} | set(kept)
    at_hand |= {id(v) for eq in before for v in eq.inputs if v.constant is not None}
    for eq in before:
        lowering = getattr(eq.op, "lowering", None)
        cheap = isinstance(lowering, Elementwise) and all(id(v) in at_hand for v in eq.inputs)
        if cheap and id(eq.out) in kept:
            del kept[id(eq.out)]
            again.add(id(eq))
    return list(kept.values()), [eq for eq in before if id(eq) in again]


def _zero(var: Var) -> Var:
    x = zeros(var.aval)
    return Var(var.graph, var.number, var.aval, (x._buf, x._aval, None))


def replaced(eq: Equation, variables: dict[int, Var]) -> Equation:
    """The equation with some of its operands replaced."""
    if not any(id(v) in variables for v in eq.inputs):
        return eq
    inputs = tuple(variables.get(id(v), v) for v in eq.inputs)
    return Equation(eq.op, inputs, eq.static, eq.outs)


def pullback_of(
    flat: Flat, present: Sequence[int], wanted: Sequence[int]
) -> Callable[..., tuple[Any, ...]]:
    """The function of arguments and cotangents of outputs `present` to those of inputs `wanted`."""
    n = len(flat.inputs)

    def pulled(*arrays: Any) -> tuple[Any, ...]:
        args, variables = flat.variables(arrays[:n], wanted)
        outs = flat(args)
        return tuple(cotangents([outs[i] for i in present], arrays[n:], variables, retain=False))

    pulled.__name__ = f"{flat.name}.pullback"
    return pulled


def series_of(
    flat: Flat, moved: Sequence[tuple[int, int]], orders: tuple[int]
) -> Callable[..., tuple[Any, ...]]:
    """The function from arguments and Taylor coefficients to those of the outputs, order by order.

    `moved` says of which inputs, and at which place of their series, coefficients are given.
    """
    n, (order,) = len(flat.inputs), orders

    def along(*arrays: Any) -> tuple[Any, ...]:
        inputs = list(dict.fromkeys(k for k, _ in moved))
        args, variables = flat.variables(arrays[:n], inputs)
        series: dict[int, list[Any]] = {k: [None] * order for k in inputs}
        for (k, i), t in zip(moved, arrays[n:], strict=True):
            series[k][i] = t
        found = expanded(flat(args), variables, [series[k] for k in inputs])
        return tuple([terms[i] for i in range(order) for terms in found])

    along.__name__ = f"{flat.name}.pushforward"
    return along
