"""Control flow as operations: `scan`, `while` and `cond`. Their equations hold graphs.

    scan    body, length, constants, carries, reverse
            inputs: constants..., initial carries..., xs... (leading axis: length)
            body:   constants..., carries..., a row of each x -> new carries..., a row of each y
            outs:   final carries..., stacked ys...
    while   test, body, constants, carries
            inputs: constants..., carries...; test gives one 0-d bool; outs: carries...
    cond    then, otherwise
            inputs: predicate (0-d bool), operands...; outs: what the graph that is chosen returns

The graphs have no constants of their own: what a body captured is an input.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pullback.core.avals import Aval
from pullback.core.dtypes import DType, bool_
from pullback.core.errors import PullbackError
from pullback.ir.array import Array
from pullback.ir.convert import to_numpy
from pullback.ir.graph import Equation, Graph
from pullback.ir.op import REGISTRY, bind

__all__ = ["COND", "CONTROL", "SCAN", "WHILE", "Control", "may_raise", "row", "stacked"]

Type = tuple[tuple[int, ...], DType]


class Control:
    """A control-flow operation; `bind` treats it like the others, except that it may return a list.

    On traced arrays `stage(arrays, **static)` adds the equation and what derivatives need; it is
    set by `autodiff`, and so is `batch`.
    """

    lowering = None

    def __init__(
        self, name: str, infer: Callable[..., list[Type]], evaluate: Callable[..., list[Any]]
    ):
        self.name = name
        self.infer = infer
        self.evaluate = evaluate
        self.stage: Callable[..., list[Any]] = _unstaged
        self.batch: Callable[..., list[Any]] = _unstaged  # for many examples at once
        self.plans: dict[tuple, Any] = {}  # stays empty: `bind` takes the slow path, `run`
        self.vjp: dict[str, Any] = {}

    def inferred(self, avals: tuple[Aval, ...], static: dict[str, Any]) -> list[Type]:
        """See `Op.inferred`."""
        return self.infer(*avals, **static)

    def run(self, arrays: Sequence[Array], static: dict[str, Any]) -> Any:
        """The results for arrays: a list, or the only one."""
        traced = any(a._aval.is_symbolic for a in arrays)
        results = (self.stage if traced else self.evaluate)(arrays, **static)
        return results[0] if len(results) == 1 else results

    def __repr__(self) -> str:
        return f"<op {self.name}>"


def _unstaged(arrays: Sequence[Array], **static: Any) -> list[Any]:
    raise PullbackError(
        "control: traced control flow needs pullback.autodiff, which is not loaded."
    )


def _type(av: Aval) -> Type:
    return av.shape, av.dtype


def _check(condition: bool, name: str, fact: str) -> None:
    if not condition:
        raise PullbackError(f"{name}: {fact}.")


def _body_types(name: str, graph: Graph, given: Sequence[Type]) -> list[Type]:
    """The types of a verified graph's outputs, for inputs of the given types."""
    graph.verify()
    _check(not graph.constants, name, f"the graph {graph.name!r} has captured constants")
    expected = [_type(v.aval) for v in graph.inputs]
    _check(expected == list(given), name, f"{graph.name!r} takes {expected}, got {list(given)}")
    return [_type(v.aval) for v in graph.outputs]


# -- scan ------------------------------------------------------------------------------------------


def _scan_infer(
    *avals: Aval, body: Graph, length: int, constants: int, carries: int, reverse: bool
) -> list[Type]:
    types = [_type(a) for a in avals]
    fixed, xs = types[: constants + carries], types[constants + carries :]
    _check(all(s[:1] == (length,) for s, _ in xs), "scan", f"xs must have {length} rows, got {xs}")
    outs = _body_types("scan", body, [*fixed, *[(s[1:], d) for s, d in xs]])
    _check(outs[:carries] == fixed[constants:], "scan", f"the carries changed type, got {outs}")
    return [*outs[:carries], *[((length, *s), d) for s, d in outs[carries:]]]


def _scan_evaluate(
    arrays: Sequence[Array], body: Graph, length: int, constants: int, carries: int, reverse: bool
) -> list[Any]:
    fixed, xs = arrays[:constants], arrays[constants + carries :]
    carry: list[Any] = list(arrays[constants : constants + carries])
    ys: list[list[Any]] = [[] for _ in body.outputs[carries:]]
    for i in reversed(range(length)) if reverse else range(length):
        outs = body.run(*fixed, *carry, *[row(x, i) for x in xs], bind=bind)
        carry = outs[:carries]
        for column, y in zip(ys, outs[carries:], strict=True):
            column.append(y)
    variables = body.outputs[carries:]
    return carry + [stacked(c, v.aval, reverse) for c, v in zip(ys, variables, strict=True)]


def row(x: Array, i: int) -> Any:
    """`x[i]`."""
    return REGISTRY["primitive.getitem"].function(x, i)


def stacked(rows: Sequence[Array], av: Aval, reverse: bool) -> Any:
    """Arrays like `av`, in the order in which they were computed, as the rows of one array."""
    if not rows:
        return REGISTRY["zeros"].function((0, *av.shape), dtype=av.dtype, device=av.device)
    return REGISTRY["stack"].function(rows[::-1] if reverse else rows)


# -- while -----------------------------------------------------------------------------------------


def _while_infer(
    *avals: Aval, test: Graph, body: Graph, constants: int, carries: int
) -> list[Type]:
    types = [_type(a) for a in avals]
    _check(len(types) == constants + carries, "while", f"{len(types)} inputs")
    answer = _body_types("while", test, types)
    _check(answer == [((), bool_)], "while", f"the test must give one bool, got {answer}")
    outs = _body_types("while", body, types)
    _check(outs == types[constants:], "while", f"the carries changed type, got {outs}")
    return outs


def _while_evaluate(
    arrays: Sequence[Array], test: Graph, body: Graph, constants: int, carries: int
) -> list[Any]:
    fixed, carry = list(arrays[:constants]), list(arrays[constants:])
    while to_numpy(test.run(*fixed, *carry, bind=bind)[0]).item():
        carry = body.run(*fixed, *carry, bind=bind)
    return carry


# -- cond ------------------------------------------------------------------------------------------


def _cond_infer(*avals: Aval, then: Graph, otherwise: Graph) -> list[Type]:
    types = [_type(a) for a in avals]
    _check(types[0] == ((), bool_), "cond", f"the predicate must be a 0-d bool, got {types[0]}")
    outs = _body_types("cond", then, types[1:])
    other = _body_types("cond", otherwise, types[1:])
    _check(outs == other, "cond", f"the branches give {outs} and {other}")
    return outs


def _cond_evaluate(arrays: Sequence[Array], then: Graph, otherwise: Graph) -> list[Any]:
    chosen = then if to_numpy(arrays[0]).item() else otherwise
    return chosen.run(*arrays[1:], bind=bind)


SCAN = Control("scan", _scan_infer, _scan_evaluate)
WHILE = Control("while", _while_infer, _while_evaluate)
COND = Control("cond", _cond_infer, _cond_evaluate)
CONTROL = (SCAN, WHILE, COND)


def may_raise(eq: Equation) -> bool:
    """Whether running the equation, or one inside it, may find an error in its operands."""
    if eq.op in CONTROL:
        graphs = [g for g in eq.static.values() if isinstance(g, Graph)]
        return any(may_raise(e) for g in graphs for e in g.equations)
    return eq.op.raises
