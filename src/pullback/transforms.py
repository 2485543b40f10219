"""Functional derivatives: `grad`, `value_and_grad`, `vjp`, `jvp`, `hvp`, over trees of arrays,
nestable to any depth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from pullback.autodiff.forward import tangents
from pullback.autodiff.reverse import (
    ancestors,
    close,
    cotangents,
    depends_on_others,
    fresh,
    with_recording,
    zeros,
)
from pullback.core import pytrees
from pullback.core.errors import DTypeError, GradientError, ShapeError, briefly, expect_function
from pullback.ir.array import Array, make
from pullback.ir.convert import as_array
from pullback.ir.op import another

__all__ = ["grad", "hvp", "jvp", "value_and_grad", "vjp"]


class Primals:
    """The arguments that a transform differentiates by: their leaves as fresh variables, but those
    that a container calls fixed as the constants that they are.
    """

    def __init__(self, name: str, trees: Sequence[Any]):
        self._given = pytrees.Parameters(tuple(trees))
        if not self._given.leaves:
            raise GradientError(f"{name}: the arguments to differentiate by hold no arrays.")
        pairs = zip(self._given.leaves, self._given.paths(""), strict=True)
        self.variables = [fresh(_differentiable(name, x, place)) for x, place in pairs]

    def arguments(self) -> Any:
        """Handles for the function, which may update its arguments in place."""
        return self._given.replaced([another(v) for v in self.variables], _own)

    def derivatives(self, found: Sequence[Any]) -> Any:
        """A tree like the arguments of what was found for the variables, and zeros for the rest."""
        pairs = zip(found, self.variables, strict=True)
        filled = [zeros(v._aval) if g is None else another(g) for g, v in pairs]
        return self._given.replaced(filled, lambda x: zeros(as_array(x, "grad")._aval))

    def directions(self, name: str, trees: Sequence[Any]) -> list[Any]:
        """A tangent for each variable, from trees like the arguments."""
        structure, given = self._given.structure, pytrees.flatten(tuple(trees))[1]
        if given != structure:
            raise ShapeError(
                f"{name}: the directions must look like the primals:"
                f" {pytrees.difference(structure, given, 'directions')}."
            )
        places = self._given.paths("directions")
        rows = zip(places, self._given.of(tuple(trees)), self.variables, strict=True)
        return [_direction(name, place, t, v) for place, t, v in rows]


def _own(leaf: Any) -> Any:
    return another(leaf) if isinstance(leaf, Array) else leaf


def _argument(place: str) -> str:
    """The words for a leaf of the tuple of arguments that are differentiated by."""
    number, _, rest = place[1:].partition("]")
    return f"argument {number}{rest and ' at ' + rest}"


def _differentiable(name: str, leaf: Any, place: str) -> Any:
    """A leaf as an array that there are derivatives by."""
    x = as_array(leaf, f"{name}: {_argument(place)}")
    if not x._aval.dtype.is_inexact:
        raise DTypeError(
            f"{name}: can't differentiate by an array of dtype {x._aval.dtype.name},"
            f" got it in {_argument(place)}. Cast it to a floating dtype, or choose other"
            " argnums."
        )
    return x


def _direction(name: str, place: str, t: Any, v: Any) -> Any:
    """A tangent that fits the variable `v`."""
    t = as_array(t, name, dtype=None if isinstance(t, Array) else v._aval.dtype)
    if t._aval.shape != v._aval.shape:
        raise ShapeError(
            f"{name}: {place} must have the shape of its primal, {v._aval.shape}, got"
            f" {t._aval.shape}."
        )
    if t._aval.dtype is not v._aval.dtype:
        raise DTypeError(
            f"{name}: {place} must have the dtype of its primal, {v._aval.dtype.name}, got"
            f" {t._aval.dtype.name}."
        )
    return t


def _outputs(name: str, tree: Any) -> tuple[list[Any], pytrees.Structure]:
    leaves, structure = pytrees.flatten(tree)
    return [as_array(leaf, name) for leaf in leaves], structure


def _released(outputs: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
    """The outputs without their link to our own variables, where nobody else's are involved."""
    own = {v._node for v in variables}
    roots = [o._node for o in outputs if o._node is not None]
    if depends_on_others(ancestors(roots, stop=own), own):
        return [another(o) for o in outputs]
    return [make(o._buf, o._aval) for o in outputs]


@briefly
def vjp(f: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[[Any], tuple]]:
    """`f(*primals)` and the function that maps a cotangent of its result to cotangents of the
    primals.

    >>> y, pull = pb.vjp(lambda x: x * x, pb.tensor([1.0, 2.0]))
    >>> pull(pb.tensor([1.0, 10.0]))
    (tensor([ 2., 40.], float32, cpu),)
    """
    expect_function("vjp", f)
    given = Primals("vjp", primals)
    variables = given.variables
    result = with_recording(True, f, *given.arguments())
    outputs, out_structure = _outputs("vjp", result)

    @briefly
    def pull(cotangent: Any) -> tuple:
        leaves, structure = pytrees.flatten(cotangent)
        if structure != out_structure:
            raise ShapeError(
                "vjp: the cotangent must look like the result:"
                f" {pytrees.difference(out_structure, structure, 'the cotangent')}."
            )
        weights = [as_array(g, "vjp") for g in leaves]
        places = pytrees.paths(out_structure, "the cotangent")
        for place, g, out in zip(places, weights, outputs, strict=True):
            if g._aval.shape != out._aval.shape:
                raise ShapeError(
                    f"vjp: {place} must have the shape of the result, {out._aval.shape},"
                    f" got {g._aval.shape}."
                )
        return given.derivatives(cotangents(outputs, weights, variables, retain=True))

    close(variables)
    return pytrees.unflatten(out_structure, _released(outputs, variables)), pull


def _split(f: Callable[..., Any], argnums: int | Sequence[int], args: tuple, kwargs: dict) -> Any:
    """The chosen arguments, and `f` as a function of them alone."""
    listed = argnums if isinstance(argnums, (tuple, list)) else (argnums,)
    if any(isinstance(n, bool) or not isinstance(n, int) for n in listed):
        raise DTypeError(
            f"grad: argnums are positions of arguments, which are integers, got {argnums!r}."
        )
    chosen = tuple(listed)
    for n in chosen:
        if not -len(args) <= n < len(args):
            raise GradientError(
                f"grad: argnums names argument {n}, got"
                f" {len(args)} positional argument{'s' * (len(args) != 1)}."
            )
    chosen = tuple(n % len(args) for n in chosen)

    def of_chosen(*values: Any) -> Any:
        full = list(args)
        for n, v in zip(chosen, values, strict=True):
            full[n] = v
        return f(*full, **kwargs)

    return of_chosen, [args[n] for n in chosen]


@briefly
def value_and_grad(
    f: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """The function that computes `f`, which returns a real scalar, and its gradient by the
    arguments `argnums`.

    With `has_aux`, `f` returns (scalar, anything) and so does the value.

    >>> pb.value_and_grad(lambda x: (x ** 3).sum())(pb.tensor([1.0, 2.0]))
    (tensor(9., float32, cpu), tensor([ 3., 12.], float32, cpu))
    """

    expect_function("grad", f)

    @briefly
    @wraps(f)
    def derived(*args: Any, **kwargs: Any) -> Any:
        of_chosen, primals = _split(f, argnums, args, kwargs)
        given = Primals("grad", primals)
        variables = given.variables
        result = with_recording(True, of_chosen, *given.arguments())
        value, aux = result if has_aux else (result, None)
        if not isinstance(value, Array):
            raise GradientError(
                f"grad: the function must return a scalar array, got {type(value).__name__}."
            )
        if value._aval.size != 1 or value._aval.dtype.is_complex:
            raise GradientError(
                f"grad: the function must return a real scalar, got {value._aval}. Use vjp, or"
                " reduce the result."
            )
        if not value._aval.dtype.is_inexact:
            raise GradientError(
                f"grad: the function must return a floating scalar, got {value._aval}. Integers and"
                " booleans have no derivative: differentiate what they were made of."
            )
        aux_leaves, aux_structure = pytrees.flatten(aux)
        aux_arrays = [a for a in aux_leaves if isinstance(a, Array)]
        found = cotangents([value], [None], variables, retain=False)
        close(variables)
        released = iter(_released([value, *aux_arrays], variables))
        value = next(released)
        aux_leaves = [next(released) if isinstance(a, Array) else a for a in aux_leaves]
        gradients = given.derivatives(found)
        gradient = gradients[0] if isinstance(argnums, int) else gradients
        if has_aux:
            return (value, pytrees.unflatten(aux_structure, aux_leaves)), gradient
        return value, gradient

    return derived


@briefly
def grad(
    f: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """The gradient of `f`, which returns a real scalar, by the arguments `argnums`.

    >>> cube = lambda x: x ** 3
    >>> pb.grad(pb.grad(cube))(pb.tensor(2.0))
    tensor(12., float32, cpu)
    """
    both = value_and_grad(f, argnums, has_aux)

    @briefly
    @wraps(f)
    def derived(*args: Any, **kwargs: Any) -> Any:
        value, gradient = both(*args, **kwargs)
        return (gradient, value[1]) if has_aux else gradient

    return derived


@briefly
def jvp(
    f: Callable[..., Any], primals: Sequence[Any], directions: Sequence[Any]
) -> tuple[Any, Any]:
    """`f(*primals)` and its derivative along `directions`, by forward mode.

    >>> pb.jvp(pb.sin, (pb.tensor(0.0),), (pb.tensor(1.0),))
    (tensor(0., float32, cpu), tensor(1., float32, cpu))
    """
    expect_function("jvp", f)
    given = Primals("jvp", primals)
    variables, seeds = given.variables, given.directions("jvp", directions)
    result = with_recording(True, f, *given.arguments())
    outputs, out_structure = _outputs("jvp", result)
    found = tangents(outputs, variables, seeds)
    close(variables)
    filled = [
        zeros(o._aval) if t is None else another(t) for t, o in zip(found, outputs, strict=True)
    ]
    values = _released(outputs, variables)
    return pytrees.unflatten(out_structure, values), pytrees.unflatten(out_structure, filled)


@briefly
def hvp(f: Callable[..., Any], primals: Sequence[Any], directions: Sequence[Any]) -> Any:
    """The Hessian of the scalar function `f`, applied to `directions`: forward over reverse, no
    matrix is formed.

    >>> pb.hvp(lambda x: (x ** 3).sum(), (pb.tensor([1.0, 2.0]),), (pb.tensor([1.0, 1.0]),))
    tensor([ 6., 12.], float32, cpu)
    """
    n = len(primals)
    argnums: Any = 0 if n == 1 else tuple(range(n))
    return jvp(grad(f, argnums), primals, directions)[1]
