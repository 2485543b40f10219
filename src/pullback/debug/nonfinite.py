"""`nan`: the operation, and the line of the user, that a NaN or an infinity comes from."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import partial
from sys import _getframe
from types import FrameType
from typing import Any, NamedTuple

import numpy as np

from pullback.autodiff.forward import tangents
from pullback.autodiff.reverse import sweep
from pullback.core.avals import Aval
from pullback.core.errors import NonFiniteError
from pullback.ir.array import Node, make, next_order
from pullback.ir.lowering import Elementwise, View
from pullback.ir.observing import Observer, Observing
from pullback.ir.op import Op, bind
from pullback.ir.plans import Plan
from pullback.ir.tracing import user_line

__all__ = ["nan"]

# The loops over recorded nodes: while they run, `node` is the one whose rule is applied.
SWEEPS = {sweep.__code__: "derivative", tangents.__code__: "tangent"}

MOST_KEPT = 1 << 20  # operations whose lines are known: some 200 MB, and more than a step has


class Origin(NamedTuple):
    """Where an operation was called: by the user, or in the derivative of another, `of`."""

    op: str
    line: str
    kind: str = ""
    of: Origin | None = None

    def __str__(self) -> str:
        if not self.kind:
            return f"at {self.line}" if self.line else "(its line is not known)"
        assert self.of is not None
        return f"in the {self.kind} of {self.of.op} {self.of}, which runs at {self.line}"


def nan(*, inf: bool = True) -> Observing:
    """A block, or a decorated function, in which the first NaN or infinity raises
    `NonFiniteError`: it names the operation, the line that called it, its operands there.

    An error of a derivative names the line of the forward operation that it belongs to, if that was
    computed in the block too. A NaN is reported wherever it is seen, an infinity where it is made
    of finite numbers, or not at all with `inf=False`; arrays that were given are not looked at.

    >>> @pb.debug.nan()
    ... def entropy(p):
    ...     return -(p * pb.log(p)).sum()
    >>> try:
    ...     entropy(pb.tensor([0.5, 0.5, 0.0]))
    ... except pb.NonFiniteError as error:
    ...     print(str(error).partition(", at")[0])
    log: the result has an infinity, 1 of 3 elements, first at [2]

    Jitted functions run operation by operation meanwhile, as they do without `jit`, which is slow.
    """
    return Observing(partial(Search, inf))


class Search(Observer):
    """Looks at the result of each operation of a block."""

    inlines = True

    def __init__(self, inf: bool):
        self._inf = inf
        self._orders: list[int] = []  # when operations ran, and where they were called
        self._origins: list[Origin] = []

    def operation(self, op: Op, plan: Plan, avals: Sequence[Aval], bufs: Sequence[Any]) -> Any:
        result = plan.run(*bufs)
        self._orders.append(next_order())
        self._origins.append(self._origin(op.name, _getframe(1)))
        if len(self._orders) > MOST_KEPT:
            del self._orders[: MOST_KEPT // 2], self._origins[: MOST_KEPT // 2]
        if isinstance(op.lowering, View) or not plan.aval.dtype.is_inexact:
            return result
        values = _contents(result, plan.aval)
        if not np.isfinite(values).all():
            operands = [_contents(*pair) for pair in zip(bufs, avals, strict=True)]
            self._judge(op, values, operands, _getframe(1))
        return result

    def program(self, program: Any, bufs: Sequence[Any], avals: Sequence[Aval]) -> list[Any]:
        """The derivative of a call from before the block: compiled, and searched if need be."""
        results = program.run(bufs, avals)
        for buf, av in zip(results, program.avals, strict=True):
            if av.dtype.is_inexact and not np.isfinite(_contents(buf, av)).all():
                program.graph.run(*map(make, bufs, avals), bind=bind)
                break
        return results

    def _judge(
        self, op: Op, values: np.ndarray, operands: Sequence[np.ndarray], frame: FrameType
    ) -> None:
        """Raise if what is not finite in a result is to be reported."""
        wrong, what = np.isnan(values), "a NaN"
        if not wrong.any():
            given = any(not np.isfinite(x).all() for x in operands)
            if given or not self._inf:
                return
            wrong, what = ~np.isfinite(values), "an infinity"
        where = tuple(map(int, np.argwhere(wrong)[0]))
        origin = self._origin(op.name, frame)
        seen = "; ".join(_seen(op, i, x, values.shape, where) for i, x in enumerate(operands))
        count = f", {int(wrong.sum())} of {wrong.size} elements, first at {list(where)}"
        raise NonFiniteError(
            f"{op.name}: the result has {what}{count if values.ndim else ''}, {origin}."
            f" {seen or 'It has no operands'}.",
            op.name,
            _line(origin),
        )

    def _origin(self, name: str, frame: FrameType | None) -> Origin:
        """Where an operation is called, from the frames of the stack."""
        line = user_line(frame)
        while frame is not None:
            kind = SWEEPS.get(frame.f_code)
            if kind is not None:
                return Origin(name, line, kind, self._recorded(frame.f_locals["node"]))
            frame = frame.f_back
        return Origin(name, line)

    def _recorded(self, node: Node) -> Origin:
        """Where the operation of a node was called: nodes are numbered right after it ran."""
        k = bisect_left(self._orders, node.order) - 1
        return self._origins[k]._replace(op=node.name) if k >= 0 else Origin(node.name, "")


def _line(origin: Origin) -> str:
    """The line of the innermost operation of the user, as far as it is known."""
    found = _line(origin.of) if origin.of is not None else ""
    return found or origin.line


def _contents(buf: Any, av: Aval) -> np.ndarray:
    return av.device.runtime.to_numpy(buf, av)


def _seen(op: Op, i: int, x: np.ndarray, shape: tuple[int, ...], where: tuple[int, ...]) -> str:
    """What an operand holds: there, if results are made element by element; else its range."""
    name = f"`{op.name_of(i)}`" + (f" {i - len(op.names) + 1}" if op.variadic else "")
    if isinstance(op.lowering, Elementwise):
        return f"Operand {name} is {np.broadcast_to(x, shape)[where]} there"
    if x.dtype.kind == "c" or not x.size:
        return f"Operand {name} has shape {x.shape}"
    if np.isnan(x.astype(np.float64)).any():
        return f"Operand {name} has a NaN already"
    return f"Operand {name} is between {x.min()} and {x.max()}"
