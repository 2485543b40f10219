"""Solutions of equations that can be differentiated, however they are found."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from pullback.autodiff.checkpoints import Watched
from pullback.autodiff.reverse import with_recording
from pullback.autodiff.roots import linear_solution, root
from pullback.control import while_loop
from pullback.core import pytrees
from pullback.core.errors import DTypeError, PullbackError, ShapeError, briefly, expect_function
from pullback.ir.array import Array
from pullback.ir.convert import as_array
from pullback.ir.op import REGISTRY, bind, own_handles
from pullback.jacobians import unit_vectors
from pullback.mapping import vmap
from pullback.standard import make_finfo

__all__ = ["custom_linear_solve", "custom_root", "fixed_point"]

Tree = Any
Solver = Callable[[Callable[[Tree], Tree], Tree], Tree]


class _Trees:
    """Trees like one of arrays, as lists."""

    def __init__(self, name: str, tree: Any):
        self.name = name
        leaves, self.structure = pytrees.flatten(tree)
        self.arrays = [as_array(x, name) for x in leaves]
        for x in self.arrays:
            if not x._aval.dtype.is_inexact:
                raise DTypeError(f"{name}: the unknown must be floating or complex, got {x._aval}.")

    def tree(self, arrays: list[Any]) -> Any:
        return pytrees.unflatten(self.structure, arrays)

    def flat(self, what: str, tree: Any) -> list[Any]:
        """The arrays of a tree that must look like this one."""
        leaves, structure = pytrees.flatten(tree)
        if structure != self.structure:
            raise ShapeError(
                f"{self.name}: {pytrees.difference(self.structure, structure, what)}, like the"
                " unknown."
            )
        found = []
        places = pytrees.paths(structure, what)
        for place, leaf, like in zip(places, leaves, self.arrays, strict=True):
            kind = None if isinstance(leaf, Array) else like._aval.dtype
            x = as_array(leaf, self.name, dtype=kind)
            if x._aval.shape != like._aval.shape or x._aval.dtype is not like._aval.dtype:
                raise ShapeError(
                    f"{self.name}: {place} must be {like._aval} like the unknown, got {x._aval}."
                )
            found.append(x)
        return found

    def function(self, what: str, f: Callable[[Any], Any]) -> Callable[[list[Any]], list[Any]]:
        """A function of trees as one of lists."""
        return lambda xs: self.flat(what, f(own_handles(self.tree(xs))))

    def solver(self, solve: Solver) -> Callable[..., list[Any]]:
        """A solver for functions of trees as one for functions of lists."""

        def flat(a: Callable[[list[Any]], list[Any]], b: list[Any]) -> list[Any]:
            product = lambda x: self.tree(a(self.flat("the vector", x)))  # noqa: E731
            return self.flat("the solution", solve(product, own_handles(self.tree(b))))

        return flat


@briefly
def custom_root(
    f: Callable[[Tree], Tree],
    init: Tree,
    solve: Callable[[Callable[[Tree], Tree], Tree], Tree],
    linear_solve: Solver | None = None,
) -> Tree:
    """The x with `f(x) = 0` that `solve(f, init)` finds, differentiable by all that `f` depends on.

    `x` is a tree like `init`, and so is `f(x)`. Derivatives, of any order, come from the implicit
    function theorem: what `solve` does is not looked at. They solve linear equations with
    `linear_solve(product, b)`, which returns the v with `product(v) = b`; without it the matrix is
    formed.

    >>> def newton(f, x):
    ...     for _ in range(20):
    ...         x = x - f(x) / pb.grad(f)(x)
    ...     return x
    >>> root = lambda a: pb.custom_root(lambda x: x * x - a, pb.tensor(1.0), newton)
    >>> root(pb.tensor(4.0)), pb.grad(root)(pb.tensor(4.0))
    (tensor(2., float32, cpu), tensor(0.25, float32, cpu))
    """
    expect_function("custom_root", f)
    expect_function("custom_root", solve)
    like = _Trees("custom_root", init)
    linear = like.solver(linear_solve or _by_matrix)
    found = with_recording(
        False, solve, lambda x: f(own_handles(x)), own_handles(like.tree(like.arrays))
    )
    solution = like.flat("the solution", found)
    watched = Watched("custom_root", f)
    outs = root("custom_root", like.function("f(x)", f), solution, linear, linear, watched)
    return like.tree(outs)


@briefly
def custom_linear_solve(
    product: Callable[[Tree], Tree],
    b: Tree,
    solve: Solver,
    transpose_solve: Solver | None = None,
    symmetric: bool = False,
) -> Tree:
    """The x with `product(x) = b` that `solve(product, b)` finds, differentiable by `b` and by all
    that the linear function `product` depends on.

    Reverse mode solves equations with the transpose: by `transpose_solve`, or by `solve` if it
    works for every linear function, or if `product` is `symmetric`.

    >>> m = pb.tensor([[2.0, 0.0], [0.0, 4.0]])
    >>> divide = lambda product, b: b / product(pb.ones(2))
    >>> solve = lambda m, b: pb.custom_linear_solve(lambda x: m @ x, b, divide)
    >>> pb.grad(lambda m: solve(m, pb.tensor([1.0, 1.0])).sum())(m)
    tensor([[-0.25  , -0.125 ],
            [-0.125 , -0.0625]], float32, cpu)
    """
    expect_function("custom_linear_solve", product)
    expect_function("custom_linear_solve", solve)
    like = _Trees("custom_linear_solve", b)
    first = like.solver(solve)
    second = first if transpose_solve is None or symmetric else like.solver(transpose_solve)
    a = like.function("the product", product)
    watched = Watched("custom_linear_solve", product)
    return like.tree(linear_solution("custom_linear_solve", a, like.arrays, first, second, watched))


def _by_matrix(product: Callable[[Tree], Tree], b: Tree) -> Tree:
    """The solution by the matrix of all products with unit vectors."""
    leaves, structure = pytrees.flatten(b)
    sizes = [x._aval.size for x in leaves]
    flat, total = REGISTRY["concat"].function, sum(sizes)

    def vector(tree: Any) -> Any:
        return flat([bind(REGISTRY["reshape"], x, shape=(x._aval.size,))
                     for x in pytrees.leaves(tree)])  # fmt: skip

    def tree(v: Any) -> Any:
        parts, at = [], 0
        for x, n in zip(leaves, sizes, strict=True):
            parts.append(bind(REGISTRY["reshape"], v[at : at + n], shape=x._aval.shape))
            at += n
        return pytrees.unflatten(structure, parts)

    right = vector(b)
    if not total:
        return b
    columns = vmap(lambda v: vector(product(tree(v))), out_axes=1)(unit_vectors(right))
    solve = import_module("pullback.linalg").solve  # whoever solves nothing need not wait for it
    return tree(solve(columns, right))


# -- fixed points ----------------------------------------------------------------------------------


@briefly
def fixed_point(
    f: Callable[[Tree], Tree], init: Tree, tol: float | None = None, max_steps: int = 1000
) -> Tree:
    """The x with `f(x) = x` that `x = f(x)` leads to from `init`, differentiable by all that `f`
    depends on; its derivatives are fixed points as well, and no step is kept for them.

    The steps end when none changes x by more than `tol` times the largest element of it, or of
    `init`; by default `tol` is 16 times the rounding error. After `max_steps` there is an error;
    where values can't be looked at, in a compiled or mapped function, the result is then NaN.

    >>> cosine = lambda a: pb.fixed_point(lambda x: pb.cos(a * x), pb.tensor(1.0))
    >>> cosine(pb.tensor(1.0)), pb.grad(cosine)(pb.tensor(1.0))
    (tensor(0.73908454, float32, cpu), tensor(-0.29747427, float32, cpu))
    """
    expect_function("fixed_point", f)
    if isinstance(max_steps, bool) or not isinstance(max_steps, int) or max_steps < 1:
        raise DTypeError(f"fixed_point: max_steps is a positive integer, got {max_steps!r}.")
    like = _Trees("fixed_point", init)
    step = like.function("f(x)", f)

    def residual(xs: list[Any]) -> list[Any]:
        return [a - b for a, b in zip(step(xs), xs, strict=True)]

    def linear(a: Callable[[list[Any]], list[Any]], b: list[Any]) -> list[Any]:
        # a is f' - 1, so that v = f'(v) - b is solved by the same kind of steps
        def again(vs: list[Any]) -> list[Any]:
            rows = zip(a(vs), vs, b, strict=True)
            return [x + v - y for x, v, y in rows]

        return _repeated(again, [-y for y in b], tol, max_steps)

    found = with_recording(False, _repeated, step, like.arrays, tol, max_steps)
    watched = Watched("fixed_point", f)
    return like.tree(root("fixed_point", residual, found, linear, linear, watched))


def _repeated(
    step: Callable[[list[Any]], list[Any]], init: list[Any], tol: float | None, max_steps: int
) -> list[Any]:
    """The steps from `init` until they change nothing."""

    def change(old: list[Any], new: list[Any]) -> Any:
        """Whether a step still changes something."""
        moved = REGISTRY["astype"].function(as_array(False, "fixed_point"), "bool")
        for a, b, first in zip(old, new, init, strict=True):
            if a._aval.size:
                near = 16.0 * make_finfo(a._aval.dtype).eps if tol is None else tol
                size = REGISTRY["maximum"].function(abs(b).max(), abs(first).max())
                moved = moved | ~(abs(b - a).max() <= near * size)
        return moved

    def body(state: Any) -> Any:
        xs, _, count = state
        new = step(xs)
        return new, change(xs, new), count + 1

    start = (list(init), as_array(True, "fixed_point"), as_array(0, "fixed_point"))
    xs, moving, _ = while_loop(lambda s: s[1] & (s[2] < max_steps), body, start)
    if moving._aval.is_symbolic:
        return [REGISTRY["where"].function(moving, float("nan"), x) for x in xs]
    if moving.item():
        raise PullbackError(
            f"fixed_point: the steps must come to an end, got changes still after {max_steps}."
            " Start closer to it, or raise max_steps or tol."
        )
    return xs
