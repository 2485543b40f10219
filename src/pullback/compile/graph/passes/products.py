"""Sums of matrix products with a common factor: `a @ b + a @ c` is `a @ (b + c)`.

Gradients of a weight that is used several times have this form. The sums are rounded in another
order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pullback.compile.graph.passes.rewriter import Rewriter, uses
from pullback.core.avals import Aval
from pullback.ir.graph import Equation, Graph, Var
from pullback.ops.arithmetic import add
from pullback.ops.products import matmul

__all__ = ["with_common_factors"]

LEAST = 8  # rows and columns of a product that costs more than adding its operands
MOST_TERMS = 4096  # of one sum, so that looking through them stays quick


def with_common_factors(graph: Graph) -> Graph:
    """The graph with products that share a factor, and are only added up, as one product."""
    if not any([eq.op is add.op for eq in graph.equations]):
        return graph
    made = {eq.outs[0]: eq for eq in graph.equations if eq.op is add.op or eq.op is matmul.op}
    counts = uses(graph)

    def own(v: Var, op: Any) -> bool:
        return v in made and made[v].op is op and counts[v] == 1

    sums: dict[Var, list[Var]] = {}
    inside: set[Var] = set()
    for eq in reversed(graph.equations):
        if eq.op is add.op and eq.outs[0] not in inside:
            terms = _terms(eq, made, own, inside)
            if sum(own(v, matmul.op) for v in terms) > 1 and _shared(terms, made, own):
                sums[eq.outs[0]] = terms
    return _Factored(graph, sums, made, own).run() if sums else graph


def _terms(
    eq: Equation, made: dict[Var, Equation], own: Callable[[Var, Any], bool], inside: set[Var]
) -> list[Var]:
    """The terms of a sum of sums, in order."""
    found: list[Var] = []
    stack = list(eq.inputs[::-1])
    while stack:
        v = stack.pop()
        if own(v, add.op) and v.aval is eq.outs[0].aval and len(found) < MOST_TERMS:
            inside.add(v)
            stack.extend(made[v].inputs[::-1])
        else:
            found.append(v)
    return found


def _shared(
    terms: list[Var], made: dict[Var, Equation], own: Callable[[Var, Any], bool]
) -> list[tuple[int, Var, list[Var]]]:
    """Groups of terms that share a factor: its side, the factor, the terms."""
    found = []
    left = [v for v in dict.fromkeys(terms) if own(v, matmul.op) and _is_worth(v.aval)]
    for side in (0, 1):
        groups: dict[tuple, list[Var]] = {}  # of one precision, too
        for v in left:
            operands = made[v].inputs
            key = operands[side], operands[1 - side].aval, *made[v].static.values()
            groups.setdefault(key, []).append(v)
        for (factor, *_), group in groups.items():
            if len(group) > 1:
                found.append((side, factor, group))
                left = [v for v in left if v not in group]
    return found


def _is_worth(av: Aval) -> bool:
    """Whether a product costs more than a sum of operands, which must not lose digits."""
    return min(av.shape[-2:]) >= LEAST and av.dtype.itemsize >= 4


class _Factored(Rewriter):
    """Rebuilds a graph with some sums replaced; dead code takes what led to them."""

    def __init__(
        self,
        source: Graph,
        sums: dict[Var, list[Var]],
        made: dict[Var, Equation],
        own: Callable[[Var, Any], bool],
    ):
        super().__init__(source)
        self.sums = sums
        self.makers = made
        self.own = own

    def step(self, eq: Equation) -> tuple[Var, ...]:
        terms = self.sums.get(eq.outs[0]) if eq.outs else None
        if terms is None:
            return super().step(eq)
        product: dict[Var, Var] = {}  # by the first term of a group
        gone: set[Var] = set()
        for side, factor, group in _shared(terms, self.makers, self.own):
            others = [self.env[self.makers[v].inputs[1 - side]] for v in group]
            pair = (self.env[factor], self._added(others))
            operands, static = pair if side == 0 else pair[::-1], self.makers[group[0]].static
            product[group[0]] = self.emit(matmul.op, operands, static)
            gone.update(group[1:])
        return (self._added([product.get(v, self.env[v]) for v in terms if v not in gone]),)

    def _added(self, terms: list[Var]) -> Var:
        total = terms[0]
        for v in terms[1:]:
            total = self.emit(add.op, (total, v))
        return total
