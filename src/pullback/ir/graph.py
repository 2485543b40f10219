"""A traced computation: a flat list of equations in topological order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pullback.core import pytrees
from pullback.core.avals import Aval, symbolic
from pullback.core.errors import DTypeError, PullbackError
from pullback.ir.array import Array, handle, make

__all__ = ["Equation", "Graph", "Var", "trace"]


class Var:
    """A value of a graph: what a traced array holds in place of a buffer."""

    __slots__ = ("aval", "constant", "graph", "number")

    def __init__(self, graph: Graph, number: int, av: Aval, constant: Any = None):
        self.graph = graph
        self.number = number
        self.aval = av
        self.constant = constant  # the buffer and aval of a captured array

    def __repr__(self) -> str:
        return f"%{self.number}"


class Equation:
    """`out = op(*inputs, **static)`."""

    __slots__ = ("inputs", "op", "out", "static")

    def __init__(self, op: Any, inputs: tuple[Var, ...], static: dict[str, Any], out: Var):
        self.op = op
        self.inputs = inputs
        self.static = static
        self.out = out

    def __repr__(self) -> str:
        static = "".join(f" {k}={v}" for k, v in self.static.items())
        return f"{self.out} = {self.op.name} {' '.join(map(repr, self.inputs))}{static} : {self.out.aval}"


class Graph:
    """Equations from inputs to outputs; captured arrays are constants."""

    def __init__(self, name: str = "graph"):
        self.name = name
        self.inputs: list[Var] = []
        self.constants: list[Var] = []
        self.equations: list[Equation] = []
        self.outputs: list[Var] = []
        self.structure: Any = None  # of the traced function's result
        self._count = 0
        self._captured: dict[int, Var] = {}

    def new_var(self, av: Aval, constant: Any = None) -> Var:
        var = Var(self, self._count, av, constant)
        self._count += 1
        return var

    def add_input(self, av: Aval) -> Array:
        """A new input, as a traced array."""
        var = self.new_var(symbolic(av.shape, av.dtype, av.device))
        self.inputs.append(var)
        return make(var, var.aval)

    def capture(self, array: Array) -> Var:
        """The variable of an array: its own if it belongs to this graph, else a constant."""
        if isinstance(array._buf, Var):
            if array._buf.graph is not self:
                raise PullbackError(
                    "trace: a value of another trace was used. A traced array must not leave its function."
                )
            return array._buf
        found = self._captured.get(id(array._buf))
        if found is None or found.constant[1] is not array._aval:
            av = array._aval
            found = self.new_var(symbolic(av.shape, av.dtype, av.device), (array._buf, av))
            self.constants.append(found)
            self._captured[id(array._buf)] = found
        return found

    def add(self, op: Any, arrays: Sequence[Array], static: dict[str, Any], out: Aval) -> Array:
        """Append an equation and return its traced result."""
        inputs = tuple(self.capture(a) for a in arrays)
        var = self.new_var(out)
        self.equations.append(Equation(op, inputs, static, var))
        return make(var, out)

    def verify(self) -> None:
        """Check that variables are defined before use, once, and that every aval is what its operation infers."""
        defined = {id(v) for v in (*self.inputs, *self.constants)}
        for eq in self.equations:
            for v in eq.inputs:
                if id(v) not in defined:
                    raise PullbackError(f"graph: {v} is used before it is defined, in `{eq}`.")
            if id(eq.out) in defined:
                raise PullbackError(f"graph: {eq.out} is defined twice, in `{eq}`.")
            shape, dtype = eq.op.infer(*[v.aval for v in eq.inputs], **eq.static)
            if (shape, dtype) != (eq.out.aval.shape, eq.out.aval.dtype):
                raise PullbackError(
                    f"graph: `{eq}` infers {dtype.name}{list(shape)}, which is not what it declares."
                )
            defined.add(id(eq.out))
        for v in self.outputs:
            if id(v) not in defined:
                raise PullbackError(f"graph: the output {v} is never defined.")

    def run(self, *arrays: Array, bind: Callable[..., Any]) -> list[Any]:
        """Evaluate on concrete (or tracked, or traced) arrays, equation by equation."""
        if len(arrays) != len(self.inputs):
            raise DTypeError(f"{self.name}: takes {len(self.inputs)} arrays, got {len(arrays)}.")
        env = {id(v): a for v, a in zip(self.inputs, arrays, strict=True)}
        env |= {id(v): make(*v.constant) for v in self.constants}
        for eq in self.equations:
            env[id(eq.out)] = bind(eq.op, *[env[id(v)] for v in eq.inputs], **eq.static)
        return [env[id(v)] for v in self.outputs]

    def __repr__(self) -> str:
        head = ", ".join(f"{v}: {v.aval}" for v in self.inputs)
        lines = [f"{self.name}({head})"]
        lines += [f"  {v} = constant : {v.aval}" for v in self.constants]
        lines += [f"  {eq}" for eq in self.equations]
        lines.append(f"  return {', '.join(map(repr, self.outputs))}")
        return "\n".join(lines)


def trace(f: Callable[..., Any]) -> Callable[..., Graph]:
    """The function that records `f` as a `Graph` instead of running it.

    >>> print(pb.trace(lambda x: (x * x).sum())(pb.tensor([1.0, 2.0])))
    <lambda>(%0: float32[2])
      %1 = multiply %0 %0 : float32[2]
      %2 = sum %1 axes=(0,) keepdims=False : float32[]
      return %2
    """

    def traced(*args: Any) -> Graph:
        leaves, structure = pytrees.flatten(args)
        graph = Graph(getattr(f, "__name__", "graph"))
        cls = handle.cls
        inputs = [graph.add_input(x._aval) if isinstance(x, cls) else x for x in leaves]
        result = f(*pytrees.unflatten(structure, inputs))
        outputs, graph.structure = pytrees.flatten(result)
        for out in outputs:
            if not isinstance(out, cls):
                raise DTypeError(f"trace: the function must return arrays, got {type(out).__name__}.")
            graph.outputs.append(graph.capture(out))
        graph.verify()
        return graph

    return traced
