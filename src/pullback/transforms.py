"""Functional derivatives: `grad`, `value_and_grad`, `vjp`, `jvp`, `hvp`, over trees of arrays,
nestable to any depth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from pullback.autodiff.checkpoints import Watched, checkpointed
from pullback.autodiff.recorded import Primals, Recorded, released
from pullback.autodiff.reverse import close, cotangents, with_recording
from pullback.core import pytrees
from pullback.core.errors import DTypeError, GradientError, briefly, expect_function
from pullback.ir.array import Array, make
from pullback.ir.op import own_handles

__all__ = ["checkpoint", "grad", "hvp", "jvp", "stop_gradient", "value_and_grad", "vjp"]


@briefly
def vjp(f: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[[Any], tuple]]:
    """`f(*primals)` and the function that maps a cotangent of its result to cotangents of the
    primals.

    >>> y, pull = pb.vjp(lambda x: x * x, pb.tensor([1.0, 2.0]))
    >>> pull(pb.tensor([1.0, 10.0]))
    (tensor([ 2., 40.], float32, cpu),)
    """
    recorded = Recorded("vjp", f, primals)
    return recorded.value, recorded.pulled


def of_chosen(
    name: str, f: Callable[..., Any], argnums: int | Sequence[int], args: tuple, kwargs: dict
) -> tuple[Callable[..., Any], list[Any]]:
    """`f` as a function of the arguments `argnums` alone, and these."""
    listed: list[Any] = list(argnums) if isinstance(argnums, (tuple, list)) else [argnums]
    if any(isinstance(n, bool) or not isinstance(n, int) for n in listed):
        raise DTypeError(
            f"{name}: argnums are positions of arguments, which are integers, got {argnums!r}."
        )
    chosen = tuple(listed)
    for n in chosen:
        if not -len(args) <= n < len(args):
            raise GradientError(
                f"{name}: argnums names argument {n}, got"
                f" {len(args)} positional argument{'s' * (len(args) != 1)}."
            )
    chosen = tuple(n % len(args) for n in chosen)

    def restricted(*values: Any) -> Any:
        # the transform gives the chosen ones handles of its own
        full = [None if n in chosen else own_handles(a) for n, a in enumerate(args)]
        for n, v in zip(chosen, values, strict=True):
            full[n] = v
        return f(*full, **{name: own_handles(a) for name, a in kwargs.items()})

    return restricted, [args[n] for n in chosen]


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
        function, primals = of_chosen("grad", f, argnums, args, kwargs)
        given = Primals("grad", primals)
        variables = given.variables
        result = with_recording(True, function, *given.arguments())
        if has_aux and not (isinstance(result, (tuple, list)) and len(result) == 2):
            raise GradientError(
                "grad: with has_aux the function must return (scalar, anything), got"
                f" {type(result).__name__}."
            )
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
        free = iter(released([value, *aux_arrays], variables))
        value = next(free)
        aux_leaves = [next(free) if isinstance(a, Array) else a for a in aux_leaves]
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


def expect_sequence(name: str, primals: Any, directions: Any) -> None:
    """Refuse arguments and directions that are not in a tuple or list."""
    for what, value in (("arguments", primals), ("directions", directions)):
        if not isinstance(value, (tuple, list)):
            raise DTypeError(
                f"{name}: the {what} must be a tuple, got {type(value).__name__}. Write (x,)."
            )


@briefly
def jvp(
    f: Callable[..., Any], primals: Sequence[Any], directions: Sequence[Any]
) -> tuple[Any, Any]:
    """`f(*primals)` and its derivative along `directions`, by forward mode.

    >>> pb.jvp(pb.sin, (pb.tensor(0.0),), (pb.tensor(1.0),))
    (tensor(0., float32, cpu), tensor(1., float32, cpu))
    """
    expect_sequence("jvp", primals, directions)
    recorded = Recorded("jvp", f, primals, directions=directions)
    tangent = recorded.pushed(recorded.seeds)
    return recorded.value, tangent


@briefly
def hvp(f: Callable[..., Any], primals: Sequence[Any], directions: Sequence[Any]) -> Any:
    """The Hessian of the scalar function `f`, applied to `directions`: forward over reverse, no
    matrix is formed.

    >>> pb.hvp(lambda x: (x ** 3).sum(), (pb.tensor([1.0, 2.0]),), (pb.tensor([1.0, 1.0]),))
    tensor([ 6., 12.], float32, cpu)
    """
    expect_sequence("hvp", primals, directions)
    n = len(primals)
    argnums: Any = 0 if n == 1 else tuple(range(n))
    return jvp(grad(f, argnums), primals, directions)[1]


def stop_gradient(tree: Any) -> Any:
    """The same values, as constants: derivatives of any order stop here.

    >>> pb.grad(lambda x: x * pb.stop_gradient(x))(pb.tensor(3.0))
    tensor(3., float32, cpu)
    """
    return pytrees.map_tree(lambda x: make(x._buf, x._aval) if isinstance(x, Array) else x, tree)


_ARRAY = object()  # stands for an array among the leaves of a result


@briefly
def checkpoint(f: Callable[..., Any]) -> Callable[..., Any]:
    """`f`, of which only the arguments are kept for derivatives: these compute the rest again.

    Derivatives of every order, in both modes, compiled or not, then take the memory of one run of
    `f` at a time, and the time of another run. What `f` captures gets its gradient too. Random
    numbers are the same again, since they are made from keys.

    >>> block = pb.checkpoint(lambda x: pb.sin(pb.exp(x)))
    >>> pb.grad(block)(pb.tensor(0.0))
    tensor(0.5403023, float32, cpu)
    """
    expect_function("checkpoint", f)

    @briefly
    @wraps(f)
    def kept(*args: Any, **kwargs: Any) -> Any:
        leaves, structure = pytrees.flatten((args, kwargs))
        places = [i for i, x in enumerate(leaves) if isinstance(x, Array)]
        rest: list[Any] = []
        results: list[pytrees.Structure] = []

        def flat(arrays: list[Any]) -> list[Any]:
            full = list(leaves)
            for i, x in zip(places, arrays, strict=True):
                full[i] = x
            own_args, own_kwargs = pytrees.unflatten(structure, full)
            found, result = pytrees.flatten(f(*own_args, **own_kwargs))
            results[:] = [result]
            rest[:] = [_ARRAY if isinstance(x, Array) else x for x in found]
            return [x for x in found if isinstance(x, Array)]

        arrays = [leaves[i] for i in places]
        for i in places:
            leaves[i] = None  # the node keeps them as long as it has to
        outs = iter(checkpointed(flat, arrays, Watched("checkpoint", f)))
        filled = [next(outs) if x is _ARRAY else x for x in rest]
        return pytrees.unflatten(results[0], filled)

    return kept
