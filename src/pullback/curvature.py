"""Second derivatives in one number or one vector: Laplacians, divergences, Gauss-Newton products,
and estimates of traces and diagonals with random vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from pullback.autodiff.forward import tangents
from pullback.autodiff.recorded import Recorded
from pullback.autodiff.reverse import zeros
from pullback.core import pytrees
from pullback.core.errors import DTypeError, GradientError, ShapeError, briefly, expect_function
from pullback.ir.convert import as_array
from pullback.ir.op import REGISTRY, own_handles
from pullback.jacobians import scalar_valued, unit_vectors
from pullback.mapping import vmap
from pullback.transforms import grad, jvp, of_chosen

__all__ = ["divergence", "gnvp", "hutchinson_diagonal", "hutchinson_trace", "laplacian"]


@briefly
def laplacian(f: Callable[..., Any], argnums: int = 0) -> Callable[..., Any]:
    """The sum of the second derivatives of `f` by each element of an argument, by forward mode.

    Of a function with several results it is that of each; no matrix is formed.

    >>> pb.laplacian(lambda x: (x ** 3).sum())(pb.tensor([1.0, 2.0]))
    tensor(18., float32, cpu)
    """

    expect_function("laplacian", f)

    @briefly
    @wraps(f)
    def derived(*args: Any, **kwargs: Any) -> Any:
        function, (primal,) = of_chosen("laplacian", f, (argnums,), args, kwargs)
        total = None
        for direction, rest in _directions("laplacian", primal):

            def second(v: Any, rest: Any = rest) -> Any:
                def slope(x: Any) -> Any:
                    return jvp(function, (x,), (rest(v),))[1]

                return jvp(slope, (primal,), (rest(v),))[1]

            part = pytrees.map_tree(lambda x: x.sum(axis=0), vmap(second)(direction))
            total = part if total is None else pytrees.map_tree(lambda a, b: a + b, total, part)
        return total

    return derived


@briefly
def divergence(f: Callable[..., Any], argnums: int = 0) -> Callable[..., Any]:
    """The sum of `df[i]/dx[i]` of a function whose result looks like its argument: the trace of its
    Jacobian, which is not formed.

    >>> pb.divergence(lambda x: x ** 2)(pb.tensor([1.0, 2.0]))
    tensor(6., float32, cpu)
    """

    expect_function("divergence", f)

    @briefly
    @wraps(f)
    def derived(*args: Any, **kwargs: Any) -> Any:
        function, (primal,) = of_chosen("divergence", f, (argnums,), args, kwargs)
        recorded = Recorded("divergence", function, (primal,))
        _check_field(recorded)
        total = None
        for v, o in zip(recorded.variables, recorded.outputs, strict=True):

            def own(t: Any, v: Any = v, o: Any = o) -> Any:
                (found,) = tangents([o], [v], [t])
                return zeros(o._aval).sum() if found is None else (found * t).sum()

            part = vmap(own)(unit_vectors(v)).sum()
            total = part if total is None else total + part
        return total

    return derived


def _check_field(recorded: Recorded) -> None:
    given = recorded.primals.structure.children[0]
    if recorded.out_structure != given:
        raise ShapeError(
            "divergence: the result must look like the argument:"
            f" {pytrees.difference(given, recorded.out_structure, 'the result')}."
        )
    for v, o in zip(recorded.variables, recorded.outputs, strict=True):
        if v._aval.shape != o._aval.shape:
            raise ShapeError(
                f"divergence: the result must have the shape of the argument, {v._aval.shape}, got"
                f" {o._aval.shape}."
            )


def _directions(name: str, tree: Any) -> list[tuple[Any, Callable[[Any], Any]]]:
    """For each array of a tree its unit vectors, and how such a one becomes a tree of its own."""
    given = pytrees.Parameters(tree)
    arrays = [as_array(x, name) for x in given.leaves]
    found = []
    for k, x in enumerate(arrays):
        if not x._aval.dtype.is_inexact:
            raise DTypeError(
                f"{name}: can't differentiate by an array of dtype {x._aval.dtype.name}."
            )

        def rest(v: Any, k: int = k) -> Any:
            full = [v if i == k else zeros(a._aval) for i, a in enumerate(arrays)]
            return given.replaced(full, lambda leaf: zeros(as_array(leaf, name)._aval))

        found.append((unit_vectors(x), rest))
    if not found:
        raise GradientError(f"{name}: the argument to differentiate by holds no arrays.")
    return found


@briefly
def gnvp(
    f: Callable[..., Any],
    loss: Callable[[Any], Any],
    primals: Sequence[Any],
    directions: Sequence[Any],
) -> Any:
    """The Gauss-Newton matrix `J^T H J` of `loss(f(*primals))`, applied to directions.

    J is the Jacobian of `f`, H the Hessian of `loss` by its result. Where `loss` is convex the
    matrix has no negative eigenvalue; of a negative log-likelihood by the parameters of a
    distribution from the exponential family it is the Fisher matrix.

    >>> x = pb.tensor([1.0, 2.0])
    >>> pb.gnvp(lambda x: x ** 2, lambda z: (z ** 2).sum() / 2, (x,), (pb.tensor([1.0, 1.0]),))
    tensor([ 4., 16.], float32, cpu)
    """
    recorded = Recorded("gnvp", f, primals, directions=directions)
    inner = grad(scalar_valued("gnvp", loss))
    pushed = recorded.pushed(recorded.seeds)
    found = recorded.pulled(jvp(inner, (recorded.value,), (pushed,))[1])
    return found[0] if len(found) == 1 else found


# -- estimates with random vectors -----------------------------------------------------------------


@briefly
def hutchinson_trace(product: Callable[[Any], Any], like: Any, key: Any, samples: int = 1) -> Any:
    """An estimate of the trace of a square matrix from its products with random signs v, the mean
    of `v . product(v)`: exact on average.

    >>> m = pb.tensor([[1.0, 0.0], [0.0, 3.0]])
    >>> pb.hutchinson_trace(lambda v: m @ v, pb.zeros(2), pb.random.key(0), samples=4)
    tensor(4., float32, cpu)

    With `product=lambda v: pb.hvp(f, (x,), (v,))` it is the Laplacian of f.
    """

    def one(key: Any) -> Any:
        parts = [(a * b).sum() for a, b in _signed(product, like, key)]
        return sum(parts[1:], parts[0])

    return _averaged(one, key, samples)


@briefly
def hutchinson_diagonal(
    product: Callable[[Any], Any], like: Any, key: Any, samples: int = 1
) -> Any:
    """An estimate of the diagonal of a square matrix from its products with random signs v, the
    mean of `v * product(v)`: exact on average, and a tree like `like`.

    >>> m = pb.tensor([[1.0, 0.0], [0.0, 3.0]])
    >>> pb.hutchinson_diagonal(lambda v: m @ v, pb.zeros(2), pb.random.key(0), samples=4)
    tensor([1., 3.], float32, cpu)
    """
    structure = pytrees.flatten(like)[1]

    def one(key: Any) -> Any:
        return pytrees.unflatten(structure, [a * b for a, b in _signed(product, like, key)])

    return _averaged(one, key, samples)


def _signed(product: Callable[[Any], Any], like: Any, key: Any) -> list[tuple[Any, Any]]:
    """A vector of random signs and its product, array by array."""
    leaves, structure = pytrees.flatten(like)
    arrays = [as_array(x, "hutchinson") for x in leaves]
    keys = REGISTRY["random.split"].function(key, len(arrays))
    signs = [_signs(keys[i], x._aval) for i, x in enumerate(arrays)]
    result, given = pytrees.flatten(product(own_handles(pytrees.unflatten(structure, signs))))
    if given != structure or any(
        a._aval.shape != b._aval.shape for a, b in zip(result, signs, strict=True)
    ):
        raise ShapeError("hutchinson: the product must look like the vector that is multiplied.")
    return list(zip(signs, result, strict=True))


def _signs(key: Any, av: Any) -> Any:
    """+1 or -1, each with probability one half."""
    heads = REGISTRY["random.bernoulli"].function(key, 0.5, av.shape)
    return REGISTRY["astype"].function(heads, av.dtype) * 2 - 1


def _averaged(one: Callable[[Any], Any], key: Any, samples: int) -> Any:
    if isinstance(samples, bool) or not isinstance(samples, int) or samples < 1:
        raise DTypeError(f"hutchinson: samples is a positive number of vectors, got {samples!r}.")
    keys = REGISTRY["random.split"].function(key, samples)
    return pytrees.map_tree(lambda x: x.mean(axis=0), vmap(one)(keys))
