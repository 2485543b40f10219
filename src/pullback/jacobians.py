"""Derivatives as arrays or as linear functions: Jacobians, Hessians, `linearize`, transposes.

Rows and columns are computed all at once, by one sweep that is mapped over unit vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from pullback.autodiff.forward import tangents
from pullback.autodiff.recorded import Recorded
from pullback.autodiff.reverse import cotangents, zeros
from pullback.core import pytrees
from pullback.core.avals import Aval, symbolic
from pullback.core.errors import DTypeError, GradientError, briefly, expect_function
from pullback.ir.array import Array
from pullback.ir.convert import as_array
from pullback.ir.op import REGISTRY, bind
from pullback.mapping import vmap
from pullback.sparse_jacobians import compressed_jacobian
from pullback.transforms import grad, of_chosen

__all__ = ["hessian", "jacfwd", "jacobian", "jacrev", "linear_transpose", "linearize"]

MODES = ("auto", "forward", "reverse")


# -- Jacobians -------------------------------------------------------------------------------------


@briefly
def jacobian(
    f: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    mode: str = "auto",
    has_aux: bool = False,
    sparsity: Any = None,
) -> Callable[..., Any]:
    """The function that computes the Jacobian of `f` by the arguments `argnums`: all `dy[i]/dx[j]`.

    For each array of the result there is a tree like the arguments; its arrays have the shape of
    the result, then that of the argument. `mode` is "forward" (a column for each element of the
    arguments), "reverse" (a row for each element of the result), or "auto": whichever is less.
    With `has_aux`, `f` returns (result, anything), and so does the Jacobian.

    >>> pb.jacobian(lambda x: x ** 2 + x[0])(pb.tensor([1.0, 2.0]))
    tensor([[3., 0.],
            [1., 4.]], float32, cpu)

    By complex arguments `f` must be holomorphic.

    With `sparsity`, of one array by another, it is a `SparseMatrix` of the entries that can be
    other than zero; columns or rows without a common place are computed together. `True` finds
    where they are from the operations of `f`; (rows, columns) or a matrix of booleans says so.

    >>> pb.jacobian(lambda x: x[1:] * x[:-1], sparsity=True)(pb.ones(1000))
    SparseMatrix(999 x 1000, 1998 entries)
    """
    if mode not in MODES:
        raise DTypeError(f"jacobian: mode is one of {', '.join(MODES)}, got {mode!r}.")
    if sparsity is not None and sparsity is not False:
        return compressed_jacobian("jacobian", f, argnums, sparsity, mode, has_aux)
    return _jacobian("jacobian", f, argnums, mode, has_aux)


@briefly
def jacfwd(
    f: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """`jacobian` by forward mode: best where the result has more elements than the arguments.

    >>> pb.jacfwd(lambda t: pb.stack([pb.cos(t), pb.sin(t)]))(pb.tensor(0.0))
    tensor([-0.,  1.], float32, cpu)
    """
    return _jacobian("jacfwd", f, argnums, "forward", has_aux)


@briefly
def jacrev(
    f: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """`jacobian` by reverse mode: best where the arguments have more elements than the result.

    >>> pb.jacrev(lambda x: pb.stack([x.sum(), x.prod()]))(pb.tensor([2.0, 3.0, 4.0]))
    tensor([[ 1.,  1.,  1.],
            [12.,  8.,  6.]], float32, cpu)
    """
    return _jacobian("jacrev", f, argnums, "reverse", has_aux)


def _jacobian(
    name: str,
    f: Callable[..., Any],
    argnums: int | Sequence[int],
    mode: str,
    has_aux: bool,
    checked: bool = False,
) -> Callable[..., Any]:
    expect_function(name, f)

    @briefly
    @wraps(f)
    def derived(*args: Any, **kwargs: Any) -> Any:
        function, primals = of_chosen(name, f, argnums, args, kwargs)
        recorded = Recorded(name, function, primals, has_aux)
        if not checked:  # a gradient has integers where a container holds integers as data
            _check_outputs(recorded)
        columns = sum(v._aval.size for v in recorded.variables)
        rows = sum(o._aval.size for o in recorded.outputs)
        forward = mode == "forward" or (mode == "auto" and columns <= rows)
        blocks = (_by_columns if forward or _must_push(recorded, mode) else _by_rows)(recorded)
        rows = zip(recorded.outputs, blocks, strict=True)
        trees = [_for_arguments(recorded, o, row, argnums) for o, row in rows]
        result = pytrees.unflatten(recorded.out_structure, trees)
        return (result, recorded.auxiliary) if has_aux else result

    return derived


def _for_arguments(recorded: Recorded, output: Any, blocks: Sequence[Any], argnums: Any) -> Any:
    """The blocks of one result as a tree like the arguments that were asked for."""

    def fixed(x: Any) -> Any:
        return zeros(_block_aval(output._aval, as_array(x, recorded.name)._aval))

    tree = recorded.primals.tree(blocks, fixed)
    return tree[0] if isinstance(argnums, int) else tree


def _block_aval(of: Aval, by: Aval) -> Aval:
    """Shape and dtype of a derivative."""
    return symbolic(of.shape + by.shape, of.dtype, of.device)


def _check_outputs(recorded: Recorded) -> None:
    complex_in = any(v._aval.dtype.is_complex for v in recorded.variables)
    for o in recorded.outputs:
        if not o._aval.dtype.is_inexact:
            raise DTypeError(
                f"{recorded.name}: the function must return floating or complex arrays, got"
                f" {o._aval}. Return others with has_aux."
            )
        if complex_in and not o._aval.dtype.is_complex:
            raise DTypeError(
                f"{recorded.name}: a real result of complex arguments has no complex derivative,"
                f" got {o._aval}. Use grad or vjp."
            )


def _must_push(recorded: Recorded, mode: str) -> bool:
    """Whether only forward mode gives the derivative: a complex result of real arguments."""
    mixed = any(o._aval.dtype.is_complex for o in recorded.outputs) and not all(
        v._aval.dtype.is_complex for v in recorded.variables
    )
    if mixed and mode == "reverse":
        raise DTypeError(
            f"{recorded.name}: reverse mode loses a part of complex derivatives by real arguments."
            " Use forward mode."
        )
    return mixed


def unit_vectors(x: Any) -> Any:
    """All unit vectors of arrays like `x`, along the first axis."""
    av = x._aval
    eye = REGISTRY["eye"].function(av.size, dtype=av.dtype, device=av.device)
    return bind(REGISTRY["reshape"], eye, shape=(av.size, *av.shape))


def _by_columns(recorded: Recorded) -> list[list[Any]]:
    """The blocks, for each result and argument, by tangents of the results."""
    outputs = recorded.outputs
    columns = []
    for v in recorded.variables:

        def pushed(t: Any, v: Any = v) -> list[Any]:
            found = tangents(outputs, [v], [t])
            return [zeros(o._aval) if x is None else x for x, o in zip(found, outputs, strict=True)]

        found = vmap(pushed, out_axes=-1)(unit_vectors(v))
        columns.append([_shaped(x, o, v) for x, o in zip(found, outputs, strict=True)])
    return [list(row) for row in zip(*columns, strict=True)]


def _by_rows(recorded: Recorded) -> list[list[Any]]:
    """The blocks, for each result and argument, by cotangents of the arguments."""
    variables = recorded.variables
    rows = []
    for o in recorded.outputs:

        def pulled(g: Any, o: Any = o) -> list[Any]:
            found = cotangents([o], [g], variables, retain=True)
            pairs = zip(found, variables, strict=True)
            return [zeros(v._aval) if x is None else x for x, v in pairs]

        found = vmap(pulled)(unit_vectors(o))
        conj = REGISTRY["conj"].function
        found = [conj(x) if x._aval.dtype.is_complex else x for x in found]
        rows.append([_shaped(x, o, v) for x, v in zip(found, variables, strict=True)])
    return rows


def _shaped(block: Any, output: Any, variable: Any) -> Any:
    return bind(REGISTRY["reshape"], block, shape=output._aval.shape + variable._aval.shape)


# -- second derivatives ----------------------------------------------------------------------------


def scalar_valued(name: str, f: Callable[..., Any]) -> Callable[..., Any]:
    """`f`, which must return one real number."""

    @wraps(f)
    def checked(*args: Any, **kwargs: Any) -> Any:
        y = f(*args, **kwargs)
        av = y._aval if isinstance(y, Array) else None
        if av is None or av.size != 1 or av.dtype.is_complex:
            raise GradientError(
                f"{name}: the function must return a real scalar, got {av or type(y).__name__}."
                " Use jacobian twice, or reduce the result."
            )
        return y

    return checked


@briefly
def hessian(f: Callable[..., Any], argnums: int | Sequence[int] = 0) -> Callable[..., Any]:
    """The second derivatives of a scalar function: forward over reverse, for all columns at once.

    The result is a tree of trees like the arguments; its arrays have the shape of one argument,
    then that of the other.

    >>> pb.hessian(lambda x: (x ** 3).sum() + x[0] * x[1])(pb.tensor([1.0, 2.0]))
    tensor([[ 6.,  1.],
            [ 1., 12.]], float32, cpu)
    """
    gradient = grad(scalar_valued("hessian", f), argnums)
    return _jacobian("hessian", gradient, argnums, "forward", False, checked=True)


# -- linear functions ------------------------------------------------------------------------------


@briefly
def linearize(f: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[..., Any]]:
    """`f(*primals)` and its derivative there, a linear function of directions; `f` runs once.

    >>> y, along = pb.linearize(lambda x: x ** 2, pb.tensor([1.0, 2.0]))
    >>> along(pb.tensor([1.0, 10.0]))
    tensor([ 2., 40.], float32, cpu)
    """
    recorded = Recorded("linearize", f, primals)
    return recorded.value, briefly(recorded.along)


@briefly
def linear_transpose(f: Callable[..., Any], *like: Any) -> Callable[[Any], tuple]:
    """The transpose of a linear function of arrays like the given ones, of which only shapes and
    dtypes count.

    >>> m = pb.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> pb.linear_transpose(lambda x: m @ x, pb.zeros(2))(pb.tensor([1.0, 10.0]))
    (tensor([31., 42.], float32, cpu),)
    """
    origin = pytrees.map_tree(lambda x: zeros(as_array(x, "linear_transpose")._aval), like)
    recorded = Recorded("linear_transpose", f, origin)
    _check_linear(recorded)
    return recorded.pulled


def _check_linear(recorded: Recorded) -> None:
    """Raise unless the derivative is the same everywhere."""
    weights = [zeros(o._aval) for o in recorded.outputs]
    found = cotangents(
        recorded.outputs, weights, recorded.variables, retain=True, create_graph=True
    )
    present = [g for g in found if g is not None]
    again = cotangents(present, [zeros(g._aval) for g in present], recorded.variables, retain=True)
    if any(g is not None for g in again):
        raise GradientError(
            "linear_transpose: the function is not linear: its derivative depends on where it is"
            " taken. Use vjp."
        )
