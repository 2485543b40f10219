"""An explicit tape: a graph that is built step by step, run, differentiated, cut back and drawn."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, NamedTuple

from pullback.autodiff.reverse import check_cotangent, cotangents, fresh, with_recording, zeros
from pullback.autodiff.segmented import Segments, evaluate
from pullback.core.avals import Aval, symbolic
from pullback.core.dtypes import DType, as_dtype, default_float
from pullback.core.errors import (
    DTypeError,
    GradientError,
    ShapeError,
    TraceError,
    briefly,
    expect_function,
)
from pullback.ir import graph as ir_graph
from pullback.ir.array import Array, leaf_node, make
from pullback.ir.convert import as_array, default_device, shape_of
from pullback.ir.graph import Var
from pullback.ir.op import another, bind

__all__ = ["Graph", "GraphNode", "trace"]


class GraphNode(NamedTuple):
    """What stands at one place of a tape: an input, a parameter, a constant or an operation."""

    number: int
    kind: str  # "input", "parameter", "constant", or the name of the operation
    name: str
    inputs: tuple[int, ...]
    static: dict[str, Any]
    shape: tuple[int, ...]
    dtype: DType


class Graph(ir_graph.Graph):
    """A tape that stays open: operations on its values are written down, to be run when asked.

    `input` and `parameter` make values, and every operation on them adds a node. `forward` computes
    all nodes, `backward` the derivatives of one; `gradient` adds derivatives as new nodes, which
    can be differentiated again. `truncate` cuts the tape back to an earlier length.

    >>> g = pb.Graph()
    >>> x, w = g.input(3, name="x"), g.parameter(pb.tensor([1.0, 2.0, 3.0]), name="w")
    >>> y = (x * w).sum()
    >>> g.forward({x: pb.tensor([1.0, 0.0, 2.0])})[y]
    tensor(7., float32, cpu)
    >>> g.backward(y)
    >>> g.grad(w)
    tensor([1., 0., 2.], float32, cpu)
    """

    def __init__(self, name: str = "graph"):
        super().__init__(name)
        self._vars: list[Var] = []
        self._names: dict[int, str] = {}
        self._parameters: dict[int, Any] = {}
        self._values: dict[int, Any] = {}
        self._variables: dict[int, Any] = {}  # what `forward` differentiates by
        self._gradients: dict[int, Any] = {}
        self._segments: Segments | None = None  # of a forward pass of which not all is kept

    # -- building -----------------------------------------------------------------------------

    def new_var(self, av: Aval, constant: Any = None) -> Var:
        var = super().new_var(av, constant)
        self._vars.append(var)
        return var

    def capture(self, array: Array) -> Var:
        var = super().capture(array)
        self._check_alive(var)
        return var

    def input(self, shape: Any, dtype: Any = None, *, name: str = "", device: Any = None) -> Any:
        """A value that `forward` is given."""
        dtype = default_float() if dtype is None else as_dtype(dtype)
        dev = default_device() if device is None else device
        array = self.add_input(symbolic(shape_of(shape, "Graph.input"), dtype, dev))
        if dtype.is_inexact:
            array._node = leaf_node(array._aval)
        self._names[array._buf.number] = name
        return array

    def parameter(self, value: Any, *, name: str = "") -> Any:
        """A value that the tape holds; `graph[p] = value` gives it a new one."""
        value = as_array(value, "Graph.parameter")
        array = self.input(
            value._aval.shape, value._aval.dtype, name=name, device=value._aval.device
        )
        self._parameters[array._buf.number] = make(value._buf, value._aval)
        return array

    def truncate(self, length: int) -> None:
        """Forget all nodes but the first `length`, with their values and gradients."""
        if not 0 <= length <= len(self):
            raise ShapeError(
                f"Graph.truncate: the length must be from 0 to {len(self)}, got {length}."
            )
        for eq in self.equations:
            first, last = eq.outs[0].number, eq.outs[-1].number
            if first < length <= last:
                raise ShapeError(
                    f"Graph.truncate: node {length} is in the middle of `{eq.op.name}`, which has"
                    f" nodes {first} to {last}."
                )
        self.equations = [eq for eq in self.equations if eq.outs[-1].number < length]
        for kept in (self.inputs, self.constants, self.outputs, self._vars):
            kept[:] = [v for v in kept if v.number < length]
        for table in (
            self._names,
            self._parameters,
            self._values,
            self._variables,
            self._gradients,
        ):
            for number in [n for n in table if n >= length]:
                del table[number]
        if self._segments is not None:
            self._segments.truncate(length)
        self._captured = {k: v for k, v in self._captured.items() if v.number < length}
        self._count = length

    # -- looking ------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._vars)

    @property
    def nodes(self) -> list[GraphNode]:
        """Everything on the tape, in order."""
        kinds = {v.number: "constant" for v in self.constants} | {
            v.number: "parameter" if v.number in self._parameters else "input" for v in self.inputs
        }
        made = {v.number: eq for eq in self.equations for v in eq.outs}
        found = []
        for var in self._vars:
            n, eq = var.number, made.get(var.number)
            kind = eq.op.name if eq else kinds[n]
            inputs = tuple(v.number for v in eq.inputs) if eq else ()
            static = eq.static if eq else {}
            name = self._names.get(n, "")
            found.append(GraphNode(n, kind, name, inputs, static, var.aval.shape, var.aval.dtype))
        return found

    def draw(self, path: str | os.PathLike[str] | None = None) -> str:
        """The graph as SVG text, written to a file if a path is given."""
        diagram = import_module("pullback.diagram")  # for those who look
        boxes = []
        for node in self.nodes:
            title = f"{node.kind} {node.name}".strip()
            subtitle = f"%{node.number} {self._vars[node.number].aval}"
            boxes.append(diagram.GraphBox(title, subtitle, node.kind, node.inputs))
        picture = diagram.svg(boxes)
        if path is not None:
            with open(path, "w", encoding="utf-8") as file:
                file.write(picture)
        return picture

    def _repr_svg_(self) -> str:
        return self.draw()

    # -- running ------------------------------------------------------------------------------

    def forward(
        self, feeds: Mapping[Any, Any] | None = None, *, segments: int | None = None
    ) -> Graph:
        """Compute every node; `feeds` gives a value to each input. Returns the graph itself.

        With `segments`, the tape is run in so many parts, and only values that go from one to the
        next, and results, are kept: `backward` runs each part again, and so does asking for another
        value.
        """
        given = {self._var(x).number: v for x, v in (feeds or {}).items()}
        unknown = given.keys() - {v.number for v in self.inputs}
        if unknown:
            raise TraceError(f"Graph.forward: %{min(unknown)} is no input. Feed inputs only.")
        values: dict[int, Any] = {v.number: make(*v.constant) for v in self.constants}
        for var in self.inputs:
            value = given.get(var.number, self._parameters.get(var.number))
            values[var.number] = self._fed(var, value)
        variables = {v.number: values[v.number] for v in self.inputs if v.aval.dtype.is_inexact}
        parts = None
        if segments is not None:
            parts = Segments(self.equations, segments, "Graph.forward")
        self._values, self._segments = {}, None
        if parts is None:
            with_recording(True, evaluate, self.equations, values)
        else:
            parts.run(self.equations, values)
        self._values, self._variables, self._segments = values, variables, parts
        return self

    def _fed(self, var: Var, value: Any) -> Any:
        label = self._names.get(var.number) or f"%{var.number}"
        if value is None:
            raise TraceError(f"Graph.forward: the input {label}, {var.aval}, was given no value.")
        array = as_array(value, "Graph.forward")
        if (array._aval.shape, array._aval.dtype) != (var.aval.shape, var.aval.dtype):
            raise ShapeError(
                f"Graph.forward: the input {label} must be {var.aval}, got {array._aval}."
            )
        plain = make(array._buf, array._aval)
        return fresh(plain) if var.aval.dtype.is_inexact else plain

    def __getitem__(self, x: Any) -> Any:
        """The value of a node after `forward`; a parameter has one at any time."""
        number = self._var(x).number
        found = self._values.get(number, self._parameters.get(number))
        if found is None and self._segments is not None and number in self._segments.part_of:
            found = self._segments.value(number, self._values)
        if found is None:
            raise TraceError(f"Graph: %{number} has no value yet. Call forward first.")
        return make(found._buf, found._aval)

    def __setitem__(self, x: Any, value: Any) -> None:
        number = self._var(x).number
        if number not in self._parameters:
            raise TraceError(f"Graph: only parameters can be set, got %{number}.")
        fed = self._fed(self._vars[number], value)
        self._parameters[number] = make(fed._buf, fed._aval)

    def function(self, *targets: Any) -> Callable[..., Any]:
        """The targets as a function of the inputs, with parameters as they are: for `pb.jit`."""
        numbers = [self._var(t).number for t in targets]
        inputs = [v for v in self.inputs if v.number not in self._parameters]
        fixed = dict(self._parameters)
        constants = {v.number: v.constant for v in self.constants}
        equations = list(self.equations)

        def run(*arrays: Any) -> Any:
            if len(arrays) != len(inputs):
                raise TraceError(f"{self.name}: takes {len(inputs)} inputs, got {len(arrays)}.")
            values = {n: make(*c) for n, c in constants.items()} | fixed
            values |= {
                v.number: as_array(a, self.name) for v, a in zip(inputs, arrays, strict=True)
            }
            evaluate(equations, values)
            found = tuple(another(values[n]) for n in numbers)
            return found[0] if len(found) == 1 else found

        return run

    # -- derivatives --------------------------------------------------------------------------

    def backward(self, target: Any, gradient: Any = None, *, segments: int | None = None) -> None:
        """Add the derivatives of `target` by all inputs and parameters to what `grad` gives.

        A target that is no scalar needs a `gradient` of its shape. Call `forward` first. With
        `segments`, all is dropped but the values that go from one of so many parts of the tape to
        the next, and each part is run again, the last one first: less memory for another forward
        pass, and the same bits. `forward` takes `segments` too; then it never keeps the rest.
        """
        number = self._var(target).number
        if segments is not None:
            self._drop(segments)
        if self._segments is not None and number in self._segments.part_of:
            self._add_gradients(self._segmented(self._segments, number, gradient))
            return
        if number not in self._values:
            raise TraceError(f"Graph.backward: %{number} has no value yet. Call forward first.")
        out = self._values[number]
        if out._node is None:
            raise _independent(number)
        weight = None if gradient is None else as_array(gradient, "Graph.backward")
        variables = list(self._variables.values())
        found = cotangents([out], [weight], variables, retain=True)
        self._add_gradients(dict(zip(self._variables, found, strict=True)))

    def _add_gradients(self, found: Mapping[int, Any]) -> None:
        """Add cotangents of inputs to the gradients; None, or none at all, is zero."""
        for n, v in self._variables.items():
            g = found.get(n)
            new = zeros(v._aval) if g is None else make(g._buf, g._aval)
            before = self._gradients.get(n)
            self._gradients[n] = new if before is None else before + new

    def _drop(self, segments: int) -> None:
        """Keep what crosses from one segment to the next, without its record."""
        known = self._values.keys() | (self._segments.part_of.keys() if self._segments else ())
        run = [eq for eq in self.equations if eq.outs[0].number in known]
        parts = Segments(run, segments, "Graph.backward")
        if run:
            kept = {n: x for n, x in self._values.items() if n not in parts.part_of}
            self._values, self._segments = kept | {n: self[n] for n in parts.kept}, parts

    def _segmented(self, parts: Segments, number: int, gradient: Any) -> Mapping[int, Any]:
        """The cotangents of the inputs, by segments."""
        weight = None if gradient is None else as_array(gradient, "Graph.backward")
        weight = check_cotangent("Graph.backward", weight, make(None, self._vars[number].aval))
        found = parts.cotangents(number, weight, self._values)
        if found.keys().isdisjoint(self._variables):
            raise _independent(number)
        return found

    def grad(self, x: Any) -> Any:
        """The derivative by an input or parameter that `backward` has added up, or None."""
        found = self._gradients.get(self._var(x).number)
        return None if found is None else another(found)

    def zero_grad(self) -> None:
        """Forget what `backward` has added up."""
        self._gradients.clear()

    def gradient(self, target: Any, *by: Any) -> Any:
        """The derivatives of a scalar, as new nodes of the tape: one, or a tuple of them.

        >>> g = pb.Graph()
        >>> x = g.input(())
        >>> second = g.gradient(g.gradient(x * x * x, x), x)
        >>> g.forward({x: 2.0})[second]
        tensor(12., float32, cpu)
        """
        for x in (target, *by):
            self._check_alive(self._var(x))
            if not isinstance(x, Array):
                raise GradientError("Graph.gradient: takes values of the tape, got a number.")
            if x._node is None:
                raise GradientError(
                    f"Graph.gradient: {x._buf!r} does not depend on a floating value made by"
                    " `input` or `parameter`. Of a traced function, trace the derivative instead."
                )
        found = cotangents([target], [None], by, retain=True, create_graph=True)
        filled = tuple(
            self._written(zeros(x._aval) if g is None else g)
            for g, x in zip(found, by, strict=True)
        )
        return filled[0] if len(filled) == 1 else filled

    def _written(self, x: Any) -> Any:
        """A value of the tape; one that depends on nothing is written down as a constant."""
        var = self.capture(x)
        return x if x._buf is var else make(var, var.aval)

    # -- names of values ----------------------------------------------------------------------

    def _var(self, x: Any) -> Var:
        """The node that a value, or a number, stands for."""
        if isinstance(x, int) and 0 <= x < len(self._vars):
            return self._vars[x]
        var = x._buf if isinstance(x, Array) else x
        if not isinstance(var, Var) or var.graph is not self:
            raise TraceError(f"{self.name}: expected a value of this graph, got {x!r}.")
        self._check_alive(var)
        return var

    def _check_alive(self, var: Var) -> None:
        if not (var.number < len(self._vars) and self._vars[var.number] is var):
            raise TraceError(
                f"{self.name}: %{var.number} was cut off by truncate. Use values made since."
            )

    def run(self, *arrays: Array, bind: Callable[..., Any] = bind) -> list[Any]:
        """The outputs of a traced function, one equation after another."""
        return super().run(*arrays, bind=bind)


def _independent(number: int) -> GradientError:
    return GradientError(
        f"Graph.backward: %{number} does not depend on a floating input or parameter."
    )


@briefly
def trace(f: Callable[..., Any]) -> Callable[..., Graph]:
    """The function that records `f` as a `Graph` instead of running it.

    >>> print(pb.trace(lambda x: (x * x).sum())(pb.tensor([1.0, 2.0])))
    <lambda>(%0: float32[2])
      %1 = multiply %0 %0 : float32[2]
      %2 = sum %1 axes=(0,) keepdims=False : float32[]
      return %2
    """
    if isinstance(f, Array):
        raise DTypeError(
            "trace: expected a function to record, got a tensor. The sum of a diagonal is"
            " pb.linalg.trace(x)."
        )
    expect_function("trace", f)
    return ir_graph.trace(f, Graph)
