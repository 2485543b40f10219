"""A traced computation: a flat list of equations in topological order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Any

from pullback.core import pytrees
from pullback.core.avals import Aval, symbolic
from pullback.core.errors import DTypeError, PullbackError
from pullback.ir.array import Array, handle, make, mode

__all__ = ["Equation", "Graph", "Var", "next_serial", "trace"]


next_serial = count().__next__


class Var:
    """A value of a graph: what a traced array holds in place of a buffer."""

    __slots__ = ("aval", "constant", "graph", "number")

    def __init__(self, graph: Graph, number: int, av: Aval, constant: Any = None):
        self.graph = graph
        self.number = number
        self.aval = av
        self.constant = constant  # (buffer, aval, node) of a captured array

    def __repr__(self) -> str:
        return f"%{self.number}"


class Equation:
    """`outs = op(*inputs, **static)`; all operations but control flow have one output."""

    __slots__ = ("checked", "inputs", "op", "outs", "static")

    def __init__(
        self, op: Any, inputs: tuple[Var, ...], static: dict[str, Any], outs: tuple[Var, ...]
    ):
        self.op = op
        self.inputs = inputs
        self.static = static
        self.outs = outs
        self.checked = False  # whether the types were compared with what the operation infers

    def become(
        self, inputs: tuple[Var, ...], static: dict[str, Any], outs: tuple[Var, ...]
    ) -> None:
        """Have other operands, parameters and results."""
        self.inputs = inputs
        self.static = static
        self.outs = outs
        self.checked = False

    def check(self) -> None:
        """Compare the types with what the operation infers, once: graphs share equations."""
        types = [(v.aval.shape, v.aval.dtype) for v in self.outs]
        if self.op.inferred(tuple([v.aval for v in self.inputs]), self.static) != types:
            raise PullbackError(
                f"graph: `{self}` does not have the type that {self.op.name} infers."
            )
        self.checked = True

    @property
    def out(self) -> Var:
        """The only output."""
        (out,) = self.outs
        return out

    def __repr__(self) -> str:
        shown = {k: f"<{v.name}>" if isinstance(v, Graph) else v for k, v in self.static.items()}
        static = "".join(f" {k}={v}" for k, v in shown.items())
        outs = ", ".join(map(repr, self.outs))
        types = ", ".join(str(v.aval) for v in self.outs)
        return f"{outs} = {self.op.name} {' '.join(map(repr, self.inputs))}{static} : {types}"


def inferred(
    op: Any, avals: Iterable[Aval], static: dict[str, Any]
) -> list[tuple[tuple[int, ...], Any]]:
    """Shape and dtype of every output; operations with one output infer one pair."""
    return op.inferred(tuple(avals), static)


class Graph:
    """Equations from inputs to outputs; captured arrays are constants."""

    def __init__(self, name: str = "graph"):
        self.name = name
        self.serial = next_serial()
        self.level: Graph | None = mode.level  # that it was made inside of
        self.inputs: list[Var] = []
        self.constants: list[Var] = []
        self.equations: list[Equation] = []
        self.outputs: list[Var] = []
        self.structure: Any = None  # of the traced function's result
        self._count = 0
        self._captured: dict[tuple[int, int, int], Var] = {}

    @property
    def depth(self) -> tuple[int, ...]:
        """What tells inner graphs from outer ones: an inner one may use values of an outer one, not
        the other way round. A later graph is inside of an earlier one.
        """
        return (self.serial,) if self.level is None else (*self.level.depth, self.serial)

    def new_var(self, av: Aval, constant: Any = None) -> Var:
        self._count = (number := self._count) + 1
        return Var(self, number, av, constant)

    def shell(self) -> Graph:
        """A graph without equations, for some of this one's variables and for new ones."""
        result = Graph(self.name)
        result.structure, result._count = self.structure, self._count
        return result

    def has_more_than(self, source: Graph) -> bool:
        """Whether this graph, which was made of a part of `source`, has variables of its own."""
        return self._count > source._count

    def add_input(self, av: Aval) -> Array:
        """A new input, as a traced array."""
        var = self.new_var(symbolic(av.shape, av.dtype, av.device))
        self.inputs.append(var)
        return make(var, var.aval)

    def capture(self, array: Array) -> Var:
        """The variable of an array: its own if it belongs to this graph, else a constant."""
        if isinstance(array._buf, Var) and array._buf.graph is self:
            return array._buf
        # a detached array is another constant than the one it was detached from
        key = (id(array._buf), id(array._aval), id(array._node))
        found = self._captured.get(key)
        if found is None:
            av = array._aval
            found = self.new_var(
                symbolic(av.shape, av.dtype, av.device), (array._buf, av, array._node)
            )
            self.constants.append(found)
            self._captured[key] = found
        return found

    def add(
        self, op: Any, arrays: Sequence[Array], static: dict[str, Any], outs: Sequence[Aval]
    ) -> list[Any]:
        """Append an equation and return its traced results."""
        capture, new_var = self.capture, self.new_var
        inputs = tuple([capture(a) for a in arrays])
        variables = tuple([new_var(av) for av in outs])
        self.equations.append(Equation(op, inputs, static, variables))
        return [make(v, v.aval) for v in variables]

    def extend(
        self, eq: Equation, arrays: Sequence[Array], static: dict[str, Any], more: Sequence[Aval]
    ) -> None:
        """Give an equation other operands and static parameters, and further outputs."""
        inputs = tuple([self.capture(a) for a in arrays])
        eq.become(inputs, static, (*eq.outs, *[self.new_var(av) for av in more]))

    def verify(self) -> None:
        """Check that variables are defined before use, once, and that every aval is what its
        operation infers.
        """
        defined = {*self.inputs, *self.constants}
        for eq in self.equations:
            if not defined.issuperset(eq.inputs):
                v = next(v for v in eq.inputs if v not in defined)
                raise PullbackError(f"graph: {v} is used before it is defined, in `{eq}`.")
            if not eq.checked:
                eq.check()
            for v in eq.outs:
                if v in defined:
                    raise PullbackError(f"graph: {v} is defined twice, in `{eq}`.")
                defined.add(v)
        for v in self.outputs:
            if v not in defined:
                raise PullbackError(f"graph: the output {v} is never defined.")

    def run(self, *arrays: Array, bind: Callable[..., Any]) -> list[Any]:
        """Evaluate on concrete (or tracked, or traced) arrays, equation by equation."""
        if len(arrays) != len(self.inputs):
            raise DTypeError(f"{self.name}: takes {len(self.inputs)} arrays, got {len(arrays)}.")
        env = {id(v): a for v, a in zip(self.inputs, arrays, strict=True)}
        env |= {id(v): make(*v.constant) for v in self.constants}
        for eq in self.equations:
            results = bind(eq.op, *[env[id(v)] for v in eq.inputs], **eq.static)
            for v, r in zip(eq.outs, results if len(eq.outs) != 1 else [results], strict=True):
                env[id(v)] = r
        return [env[id(v)] for v in self.outputs]

    def __repr__(self) -> str:
        head = ", ".join(f"{v}: {v.aval}" for v in self.inputs)
        lines = [f"{self.name}({head})"]
        lines += [f"  {v} = constant : {v.aval}" for v in self.constants]
        lines += [f"  {eq}" for eq in self.equations]
        lines.append(f"  return {', '.join(map(repr, self.outputs))}")
        inner = [g for eq in self.equations for g in eq.static.values() if isinstance(g, Graph)]
        return "\n".join(lines + [f"where {g!r}" for g in inner])


def trace(f: Callable[..., Any], kind: type[Any] = Graph) -> Callable[..., Any]:
    """The function that records `f` as a graph, of the class `kind`, instead of running it."""

    def traced(*args: Any) -> Graph:
        leaves, structure = pytrees.flatten(args)
        graph = kind(getattr(f, "__name__", "graph"))
        cls = handle.cls
        inputs = [graph.add_input(x._aval) if isinstance(x, cls) else x for x in leaves]
        result = f(*pytrees.unflatten(structure, inputs))
        outputs, graph.structure = pytrees.flatten(result)
        for out in outputs:
            if not isinstance(out, cls):
                raise DTypeError(
                    f"trace: the function must return arrays, got {type(out).__name__}."
                )
            graph.outputs.append(graph.capture(out))
        graph.verify()
        return graph

    return traced
