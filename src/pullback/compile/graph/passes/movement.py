"""Views in normal form: one reshape, permutation or broadcast where there was a chain of them.

Views move towards the end of a graph: an elementwise operation of broadcast (permuted, reshaped)
operands becomes the broadcast (permuted, reshaped) result of a smaller one. There they cancel, or
end in a matrix product, which takes any strides. What may change bits is in `REASSOCIATING`.
"""

from __future__ import annotations

from math import prod
from typing import Any

from pullback.compile.graph.passes.constants import is_pointwise
from pullback.compile.graph.passes.rewriter import Rewriter, Rules
from pullback.core.avals import Aval
from pullback.core.dtypes import float32, float64
from pullback.ir.graph import Var
from pullback.ir.lowering import Fold
from pullback.ir.op import REGISTRY, Op
from pullback.ops.arithmetic import add, multiply
from pullback.ops.movement import broadcast_to, permute_dims, reshape
from pullback.ops.movement import slice as slice_
from pullback.ops.parts import astype
from pullback.ops.products import matmul
from pullback.ops.reductions import prod as prod_
from pullback.ops.reductions import sum as sum_

__all__ = ["REASSOCIATING", "rules", "without_units"]

Shape = tuple[int, ...]
MOVED = {permute_dims.op, reshape.op}
MOST_PRODUCTS = 16  # a transpose is moved into sums of up to so many terms


def without_units(shape: Shape) -> Shape:
    """The sizes that matter."""
    return tuple(n for n in shape if n != 1)


# -- elementwise operations of views ---------------------------------------------------------------


def _source(rw: Rewriter, x: Var) -> Var:
    """The smallest variable that broadcasts to `x`."""
    value = rw.uniform.get(x)
    if value is not None:
        return value
    eq = rw.made.get(x)
    if eq is not None and eq.op is broadcast_to.op:
        (x,) = eq.inputs
        eq = rw.made.get(x)
    if eq is not None and eq.op is reshape.op:
        (inner,) = eq.inputs
        lead = x.aval.ndim - inner.aval.ndim
        if lead > 0 and x.aval.shape == (1,) * lead + inner.aval.shape:
            return inner
    return x


def unbroadcast(rw: Rewriter, op: Any, inputs: tuple, static: dict, av: Aval) -> Var | None:
    """`f(broadcast(x), broadcast(y))` is `broadcast(f(x, y))`, computed on fewer elements."""
    small = tuple([_source(rw, v) for v in inputs])
    if small == inputs:
        return None
    return rw.broadcast(rw.emit(op, small, static), av.shape)


def through_view(rw: Rewriter, op: Any, inputs: tuple, static: dict, av: Aval) -> Var | None:
    """`f(view(x), view(y))` is `view(f(x, y))` for one permutation or reshape of one shape."""
    first = rw.made.get(inputs[-1] if not inputs[0].aval.ndim else inputs[0])
    if first is None or first.op not in MOVED:
        return None
    views = [rw.made.get(v) for v in inputs if v.aval.ndim]
    inner = first.inputs[0].aval.shape
    if first.op is reshape.op and without_units(inner) == without_units(av.shape):
        return None  # new axes of size 1 are best added where a reduction can keep them
    for eq in views:
        if eq is None or eq.op is not first.op or eq.static != first.static:
            return None
        if eq.inputs[0].aval.shape != inner or not rw.only_use(eq.out):
            return None
    operands = tuple([rw.made[v].inputs[0] if v.aval.ndim else v for v in inputs])
    return rw.emit(first.op, (rw.emit(op, operands, static),), first.static)


# -- views of views --------------------------------------------------------------------------------


def _reshape(rw: Rewriter, op: Any, inputs: tuple, static: dict, av: Aval) -> Var | None:
    (x,) = inputs
    if x.aval is av:
        return x
    eq = rw.made.get(x)
    if eq is None:
        return None
    if eq.op is op:
        return rw.reshape(eq.inputs[0], av.shape)
    if 0 in av.shape or without_units(av.shape) != without_units(x.aval.shape):
        return None
    if eq.op is broadcast_to.op:  # only axes of size 1 come and go
        (y,) = eq.inputs
        sizes = (1,) * (x.aval.ndim - y.aval.ndim) + y.aval.shape
        own = iter([m for m, n in zip(sizes, x.aval.shape, strict=True) if n != 1])
        return rw.broadcast(
            rw.reshape(y, tuple(1 if n == 1 else next(own) for n in av.shape)), av.shape
        )
    if eq.op is slice_.op:
        return rw.emit(op=slice_.op, inputs=eq.inputs, static={**eq.static, "to": av.shape})
    return None


def _permute(rw: Rewriter, op: Any, inputs: tuple, static: dict, av: Aval) -> Var | None:
    (x,) = inputs
    axes = static["axes"]
    if axes == tuple(range(len(axes))):
        return x
    long = [a for a in axes if x.aval.shape[a] != 1]
    if long == sorted(long):
        return rw.reshape(x, av.shape)
    eq = rw.made.get(x)
    if eq is None:
        return None
    if eq.op is op:
        before = eq.static["axes"]
        return rw.emit(op, eq.inputs, {"axes": tuple(before[a] for a in axes)})
    if eq.op is broadcast_to.op:
        (y,) = eq.inputs
        full = rw.reshape(y, (1,) * (x.aval.ndim - y.aval.ndim) + y.aval.shape)
        return rw.broadcast(rw.emit(op, (full,), static), av.shape)
    return None


def _transposed_product(rw: Rewriter, op: Any, inputs: tuple, static: dict, av: Aval) -> Var | None:
    """The transpose of `a @ b` is `b.T @ a.T`: it is written in the order that is wanted."""
    (x,) = inputs
    n = x.aval.ndim
    if static["axes"] != (*range(n - 2), n - 1, n - 2) or not _made_of_products(rw, x):
        return None
    eq = rw.made[x]
    if eq.op is matmul.op:
        a, b = (_swapped(rw, v) for v in eq.inputs)
        return rw.emit(matmul.op, (b, a), eq.static)
    operands = tuple([_swapped(rw, v) if v.aval.ndim else v for v in eq.inputs])
    return rw.emit(eq.op, operands, eq.static)


def _made_of_products(rw: Rewriter, x: Var) -> bool:
    """Whether `x` is an elementwise function of matrix products that nobody else uses."""
    stack = [x]
    for _ in range(MOST_PRODUCTS):
        if not stack:
            return True
        v = stack.pop()
        eq = rw.made.get(v)
        if eq is None or not rw.only_use(v) or v.aval.shape != x.aval.shape:
            return False
        if is_pointwise(eq.op):
            stack.extend(u for u in eq.inputs if u.aval.ndim)
        elif eq.op is not matmul.op:
            return False
    return False


def _swapped(rw: Rewriter, x: Var) -> Var:
    n = x.aval.ndim
    return rw.emit(permute_dims.op, (x,), {"axes": (*range(n - 2), n - 1, n - 2)})


def _broadcast(rw: Rewriter, op: Any, inputs: tuple, static: dict, av: Aval) -> Var | None:
    (x,) = inputs
    if x.aval is av:
        return x
    if x.aval.size == av.size and x not in rw.uniform:  # only axes of size 1 are new
        return rw.reshape(x, av.shape)
    small = _source(rw, x)
    return None if small is x else rw.emit(op, (small,), static)


# -- reductions ------------------------------------------------------------------------------------


def _twin(rw: Rewriter, op: Any, inputs: tuple, static: dict, av: Aval) -> Var | None:
    """A reduction that is there already with the other `keepdims` is only reshaped."""
    if "keepdims" not in static:
        return None
    other = {**static, "keepdims": not static["keepdims"]}
    found = rw.found(op, inputs, other)
    return None if found is None else rw.reshape(found, av.shape)


def _short_total(rw: Rewriter, op: Any, inputs: tuple, static: dict, av: Aval) -> Var | None:
    """A sum or product over axes of size 1 has nothing to add up."""
    (x,) = inputs
    if 0 in x.aval.shape or any(x.aval.shape[a] != 1 for a in static["axes"]):
        return None
    x = x if x.aval.dtype is av.dtype else rw.emit(astype.op, (x,), {"dtype": av.dtype})
    return rw.reshape(_summed(rw, x) if op is sum_.op else x, av.shape)


def _summed(rw: Rewriter, x: Var) -> Var:
    """What stands for a sum: it starts from 0.0, so that -0.0 becomes 0.0."""
    return rw.emit(add.op, (x, rw.number(0, x.aval)))


def sum_of_broadcast(rw: Rewriter, op: Any, inputs: tuple, static: dict, av: Aval) -> Var | None:
    """A sum along broadcast axes is a product with their size, which is rounded only once."""
    (x,) = inputs
    eq = rw.maker(x, broadcast_to.op)
    if eq is None or av.dtype not in (float32, float64) or 0 in x.aval.shape:
        return None
    (y,) = eq.inputs
    shape = x.aval.shape
    sizes = (1,) * (len(shape) - y.aval.ndim) + y.aval.shape
    repeated = [a for a in static["axes"] if sizes[a] != shape[a]]
    count = prod(shape[a] for a in repeated)
    if not repeated or count > 1 << 24:
        return None
    lead = len(shape) - y.aval.ndim
    rest = tuple(a - lead for a in static["axes"] if a not in repeated and a >= lead)
    if rest:
        y = rw.emit(op, (y,), {"axes": rest, "keepdims": True})
    scaled = _summed(rw, rw.emit(multiply.op, (y, rw.number(count, av))))
    if scaled.aval.size != av.size:  # it also repeats along axes that stay
        kept = tuple(1 if a in static["axes"] else n for a, n in enumerate(shape))
        scaled = rw.broadcast(scaled, kept)
    return rw.reshape(scaled, av.shape)


# -- matrix products -------------------------------------------------------------------------------


def _outer(rw: Rewriter, op: Any, inputs: tuple, static: dict, av: Aval) -> Var | None:
    """A product with inner size 1 is an outer product: elementwise, so it can be fused."""
    if inputs[0].aval.shape[-1] != 1:
        return None
    return _summed(rw, rw.emit(multiply.op, inputs))


def _repeated_rows(rw: Rewriter, op: Any, inputs: tuple, static: dict, av: Aval) -> Var | None:
    """Equal rows on the left (columns on the right) give equal rows (columns): one is enough."""
    x, y = inputs
    row = _once(rw, x, -2)
    if row is not None:
        return rw.broadcast(rw.emit(op, (row, y), static), av.shape)
    column = _once(rw, y, -1)
    return None if column is None else rw.broadcast(rw.emit(op, (x, column), static), av.shape)


def _repeated_inside(rw: Rewriter, op: Any, inputs: tuple, static: dict, av: Aval) -> Var | None:
    """Equal columns on the left (rows on the right) multiply a sum: a reduction is enough."""
    x, y = inputs
    if av.dtype.itemsize < 4:  # the sum would be rounded to what the product keeps in float32
        return None
    column = _once(rw, x, -1)
    if column is not None:
        total = {"axes": (y.aval.ndim - 2,), "keepdims": True}
        product = rw.emit(multiply.op, (column, rw.emit(sum_.op, (y,), total)))
        return rw.broadcast(_summed(rw, product), av.shape)
    row = _once(rw, y, -2)
    if row is None:
        return None
    total = {"axes": (x.aval.ndim - 1,), "keepdims": True}
    product = rw.emit(multiply.op, (rw.emit(sum_.op, (x,), total), row))
    return rw.broadcast(_summed(rw, product), av.shape)


def _once(rw: Rewriter, x: Var, axis: int) -> Var | None:
    """One element along `axis`, if `x` repeats it there."""
    eq = rw.maker(x, broadcast_to.op)
    if eq is None or x.aval.shape[axis] < 2 or 0 in x.aval.shape:
        return None
    (y,) = eq.inputs
    shape = list((1,) * (x.aval.ndim - y.aval.ndim) + y.aval.shape)
    if shape[axis] != 1:
        return None
    y = rw.reshape(y, tuple(shape))
    target = list(x.aval.shape)
    target[axis] = 1
    return rw.broadcast(y, tuple(target))


def _sliced_product(rw: Rewriter, op: Any, inputs: tuple, static: dict, av: Aval) -> Var | None:
    """Rows or columns of a product that nobody else uses are the only ones that are computed."""
    (x,) = inputs
    eq = rw.maker(x, matmul.op)
    if eq is None or not rw.only_use(x) or x.aval.ndim != 2 or 0 in static["shape"]:
        return None
    a, b = eq.inputs
    (s0, s1), (n0, n1), (t0, t1) = static["starts"], static["shape"], static["steps"]
    inner = a.aval.shape[1]
    left = {"starts": (s0, 0), "shape": (n0, inner), "steps": (t0, 1), "to": (n0, inner)}
    right = {"starts": (0, s1), "shape": (inner, n1), "steps": (1, t1), "to": (inner, n1)}
    pair = rw.emit(op, (a,), left), rw.emit(op, (b,), right)
    part = rw.emit(matmul.op, pair, eq.static)
    return rw.reshape(part, av.shape)


# Rules whose results may be rounded otherwise than eager mode's.
REASSOCIATING = (
    sum_of_broadcast,
    _outer,
    _transposed_product,
    _repeated_rows,
    _repeated_inside,
    _sliced_product,
)


def rules() -> Rules:
    """The rules of views, and of elementwise operations, reductions and products of views."""
    found: dict[Any, list] = {}
    for op in REGISTRY.values():
        if is_pointwise(op):
            found[op] = [unbroadcast, through_view]
        elif isinstance(op, Op) and isinstance(op.lowering, Fold) and not op.lowering.keep:
            found[op] = [_twin]
    found[sum_.op] = [_short_total, sum_of_broadcast, _twin]
    found[prod_.op] = [_short_total, _twin]
    found[reshape.op] = [_reshape]
    found[permute_dims.op] = [_permute, _transposed_product]
    found[broadcast_to.op] = [_broadcast]
    found[matmul.op] = [_outer, _repeated_rows, _repeated_inside]
    found[slice_.op] = [_sliced_product]
    return found
