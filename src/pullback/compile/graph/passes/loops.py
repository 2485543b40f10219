"""Matrix products that a scan computes row by row, computed at once outside of it.

    x[t] @ w                        one product for all rows, before the scan
    total = total + a[t].T @ b[t]   one product of all rows, after it: the gradient of a weight
    total = total + sum(b[t])       one sum of all rows, where these are kept anyway

Of a single row a.T @ b is written as a product of elements, and its sum as the row itself.

Sums over steps become sums inside a product, so they are rounded otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pullback.compile.graph.passes.control import copied
from pullback.compile.graph.passes.rewriter import Rewriter, uses
from pullback.core.avals import symbolic
from pullback.ir.control import SCAN, may_raise
from pullback.ir.graph import Equation, Graph, Var
from pullback.ops.arithmetic import add, multiply
from pullback.ops.movement import permute_dims, reshape
from pullback.ops.products import matmul
from pullback.ops.reductions import sum as sum_

__all__ = ["with_products_outside"]

MOST_ROWS = 128  # of one step's matrices: more of them keep a product busy by themselves
MOST_BYTES = 1 << 26  # bytes of all steps' matrices together, which wait for the product
LEAST_BYTES = 4  # of an element: shorter ones lose digits in a product where they would not in sums


class _Products(NamedTuple):
    """The term `left.T @ right` of a total: `rows` of each in a step."""

    left: Var
    right: Var
    rows: int
    shape: tuple[int, ...]
    static: dict[str, Any]


class _Rows(NamedTuple):
    """The term of a total that is a sum of `x` along axes, or `x` itself."""

    x: Var
    axes: tuple[int, ...]
    shape: tuple[int, ...]


def with_products_outside(graph: Graph) -> Graph:
    """The graph with the products of scans outside of them, where that pays."""
    if not any(eq.op is SCAN for eq in graph.equations):
        return graph
    outside = _Outside(graph)
    result = outside.run()
    return result if outside.moved else graph


@dataclass(eq=False)
class _Scan:
    """A scan being split: what its body loses, and what it gains as rows in and rows out."""

    body: Graph
    length: int
    inputs: tuple[Var, ...]  # outside
    constants: int
    rows: int  # the position of the first x
    is_zero: Callable[[Var], bool]  # of a variable outside
    made: dict[Var, Equation] = field(default_factory=dict)
    before: list[Var] = field(default_factory=list)  # body variables that become xs
    totals: dict[int, _Products | _Rows] = field(default_factory=dict)  # what carries sum up
    after: list[Var] = field(default_factory=list)  # body variables that become ys

    def place(self, var: Var) -> int | None:
        """The position of an input of the body."""
        return self.body.inputs.index(var) if var in self.body.inputs else None

    def root(self, var: Var) -> Var:
        """What `var` is a reshape of."""
        eq = self.made.get(var)
        while eq is not None and eq.op is reshape.op:
            (var,) = eq.inputs
            eq = self.made.get(var)
        return var

    def without_zeros(self, var: Var) -> Var:
        """What `var` is but for zeros that are added to it; the sum of it has the same digits."""
        eq = self.made.get(var)
        if eq is None or eq.op is not add.op:
            return var
        for x, other in (eq.inputs, eq.inputs[::-1]):
            place = self.place(other)
            if place is None or place >= self.constants or x.aval is not var.aval:
                continue
            if self.is_zero(self.inputs[place]):
                return x
        return var

    def is_made(self, var: Var) -> bool:
        """Whether a variable is computed in the loop: in the same step, or as a carry before it."""
        place = self.place(var)
        return place is None or self.constants <= place < self.rows

    def is_row(self, var: Var) -> bool:
        place = self.place(self.root(var))
        return place is not None and place >= self.rows

    def fits(self, *operands: Var) -> bool:
        """Whether all steps' matrices together stay small."""
        return all(v.aval.nbytes * self.length <= MOST_BYTES for v in operands)


class _Outside(Rewriter):
    """Rebuilds a graph with smaller scans."""

    def __init__(self, source: Graph):
        super().__init__(source)
        self.moved = False

    def step(self, eq: Equation) -> tuple[Var, ...]:
        if eq.op is not SCAN:
            return super().step(eq)
        inputs = tuple([self.env[v] for v in eq.inputs])
        n = eq.static["constants"]
        body = eq.static["body"]
        rows = n + eq.static["carries"]
        scan = _Scan(body, eq.static["length"], inputs, n, rows, self._is_zero)
        scan.made = {v: e for e in body.equations for v in e.outs}
        _find(scan)
        if not scan.before and not scan.totals:
            return super().step(eq)
        self.moved = True
        return self._split(eq, scan)

    def _split(self, eq: Equation, scan: _Scan) -> tuple[Var, ...]:
        body, first, rows = scan.body, scan.constants, scan.rows
        kept = [k for k in range(rows - first) if k not in scan.totals]
        ys = list(range(rows - first, len(body.outputs)))
        places = [*range(first), *[first + k for k in kept], *range(rows, len(body.inputs))]
        ends = [body.inputs[p] for p in places] + scan.before
        outputs = [body.outputs[k] for k in (*kept, *ys)] + scan.after
        new = copied(body, ends, {}, outputs)
        xs = tuple(self._all_rows(scan, v) for v in scan.before)
        operands = (*[scan.inputs[p] for p in places], *xs)
        static = {**eq.static, "body": new, "carries": len(kept)}
        stacked = [
            symbolic((scan.length, *v.aval.shape), v.aval.dtype, v.aval.device) for v in scan.after
        ]
        avals = [eq.outs[k].aval for k in (*kept, *ys)] + stacked
        outs = self.append(SCAN, operands, static, avals) if outputs or may_raise(eq) else ()
        found = dict(zip((*kept, *ys), outs, strict=False))
        gathered = dict(zip(scan.after, outs[len(kept) + len(ys) :], strict=True))
        for k, term in scan.totals.items():
            total, begin = self._total(scan, term, gathered), scan.inputs[first + k]
            found[k] = total if self._is_zero(begin) else self.emit(add.op, (begin, total))
        return tuple(found[k] for k in range(len(eq.outs)))

    def _is_zero(self, x: Var) -> bool:
        value = self.value(x)
        return value is not None and value == 0

    def _all_rows(self, scan: _Scan, product: Var) -> Var:
        """All steps of `x[t] @ w` at once."""
        x, w = scan.made[product].inputs
        m, inner = x.aval.shape
        rows = self.reshape(self._stack(scan, x, {}), (scan.length * m, inner))
        out = self.emit(matmul.op, (rows, self._constant(scan, w)), scan.made[product].static)
        return self.reshape(out, (scan.length, *product.aval.shape))

    def _constant(self, scan: _Scan, w: Var) -> Var:
        """The value outside of a constant of the body, or of its transpose."""
        eq = scan.made.get(w)
        if eq is None:
            return scan.inputs[scan.body.inputs.index(w)]
        return self.emit(eq.op, (self._constant(scan, eq.inputs[0]),), eq.static)

    def _stack(self, scan: _Scan, var: Var, gathered: dict[Var, Var]) -> Var:
        """The rows of a body variable for all steps."""
        root = scan.root(var)
        stacked = (
            gathered[root] if scan.is_made(root) else scan.inputs[scan.body.inputs.index(root)]
        )
        return self.reshape(stacked, (scan.length, *var.aval.shape))

    def _total(self, scan: _Scan, term: _Products | _Rows, gathered: dict[Var, Var]) -> Var:
        """All steps of a term added up."""
        if isinstance(term, _Rows):
            x = self._stack(scan, term.x, gathered)
            axes = (0, *[a + 1 for a in term.axes])
            total = self.emit(sum_.op, (x,), {"axes": axes, "keepdims": False})
            return self.reshape(total, term.shape)
        m, n = term.shape
        tall = scan.length * term.rows
        left = self.reshape(self._stack(scan, term.left, gathered), (tall, m))
        right = self.reshape(self._stack(scan, term.right, gathered), (tall, n))
        turned = self.emit(permute_dims.op, (left,), {"axes": (1, 0)})
        return self.emit(matmul.op, (turned, right), term.static)


def _find(scan: _Scan) -> None:
    """Look for products that need not be in the loop."""
    counts = uses(scan.body)
    for eq in scan.body.equations:
        if eq.op is matmul.op and _is_projection(scan, eq):
            scan.before.append(eq.out)
    terms = {}
    for k in range(scan.rows - scan.constants):
        term = _term(scan, k, counts)
        if term is not None:
            terms[k] = term
    for k, term in terms.items():
        products = _products(scan, term)
        if products is not None:
            scan.totals[k] = products
            _keep(scan, products.left)
            _keep(scan, products.right)
    for k, term in terms.items():
        rows = _summed(scan, term)
        if k not in scan.totals and rows is not None:
            scan.totals[k] = rows


def _is_projection(scan: _Scan, eq: Equation) -> bool:
    """Whether a product is one of a row and a constant, or its transpose."""
    x, w = eq.inputs
    turned = scan.made.get(w)
    source = turned.inputs[0] if turned is not None and turned.op is permute_dims.op else w
    place = scan.place(source)
    if place is None or place >= scan.constants or x.aval.ndim != 2 or w.aval.ndim != 2:
        return False
    return scan.is_row(x) and x.aval.shape[0] <= MOST_ROWS and scan.fits(eq.out)


def _term(scan: _Scan, k: int, counts: Any) -> Var | None:
    """The term that a step only adds to carry `k`."""
    carry, out = scan.body.inputs[scan.constants + k], scan.body.outputs[k]
    eq = scan.made.get(out)
    if eq is None or eq.op is not add.op or counts[carry] != 1 or counts[out] != 1:
        return None
    if carry not in eq.inputs:
        return None
    other = eq.inputs[1] if eq.inputs[0] is carry else eq.inputs[0]
    return scan.without_zeros(other) if other.aval is carry.aval else None


def _products(scan: _Scan, term: Var) -> _Products | None:
    """The term as products of few rows, if it is such."""
    eq = scan.made.get(term)
    if eq is None:
        return None
    found = _outer(eq) if eq.op is multiply.op else _matrices(scan, eq)
    if found is None or not scan.fits(found.left, found.right):
        return None
    return found if all(_can_stack(scan, v) for v in (found.left, found.right)) else None


def _matrices(scan: _Scan, eq: Equation) -> _Products | None:
    """`a.T @ b`."""
    left = scan.made.get(eq.inputs[0]) if eq.op is matmul.op else None
    if left is None or left.op is not permute_dims.op or left.static["axes"] != (1, 0):
        return None
    a, b = left.inputs[0], eq.inputs[1]
    few = b.aval.ndim == 2 and b.aval.shape[0] <= MOST_ROWS
    return _Products(a, b, b.aval.shape[0], eq.out.aval.shape, eq.static) if few else None


def _outer(eq: Equation) -> _Products | None:
    """The product of a column and a row, element by element."""
    av = eq.out.aval
    if av.ndim != 2 or not av.dtype.is_inexact or av.dtype.itemsize < LEAST_BYTES:
        return None
    m, n = av.shape
    for column, row in (eq.inputs, eq.inputs[::-1]):
        if column.aval.shape == (m, 1) and row.aval.shape in ((1, n), (n,)) and m > 1 and n > 1:
            return _Products(column, row, 1, (m, n), {})
    return None


def _summed(scan: _Scan, term: Var) -> _Rows | None:
    """The term as a sum of rows that are kept anyway; single rows, if a product keeps them."""
    eq, av = scan.made.get(term), term.aval
    if eq is not None and eq.op is sum_.op:
        (x,) = eq.inputs
        return _Rows(x, eq.static["axes"], av.shape) if _is_stacked(scan, x) else None
    kept = av.dtype.is_inexact and scan.root(term) in scan.after
    return _Rows(term, (), av.shape) if kept else None


def _can_stack(scan: _Scan, var: Var) -> bool:
    """Whether the rows of a variable differ from step to step."""
    place = scan.place(scan.root(var))
    return place is None or place >= scan.constants


def _is_stacked(scan: _Scan, var: Var) -> bool:
    """Whether all rows of a variable are kept anyway."""
    return scan.is_row(var) or scan.root(var) in scan.after


def _keep(scan: _Scan, var: Var) -> None:
    root = scan.root(var)
    if scan.is_made(root) and root not in scan.after:
        scan.after.append(root)
