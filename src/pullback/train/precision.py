"""Mixed precision: parameters in float32, computation in a narrower dtype.

bfloat16 has the range of float32 and needs no more than the cast. Gradients in float16 vanish below
6e-8, so a loss is scaled up before it is differentiated.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from pullback.core import pytrees
from pullback.core.dtypes import as_dtype, float32
from pullback.core.errors import DTypeError, ShapeError, expect_function
from pullback.ir.array import Array
from pullback.ir.convert import as_array
from pullback.ops.creation import full, zeros
from pullback.ops.logic import isfinite
from pullback.ops.parts import astype
from pullback.ops.reductions import all as all_
from pullback.ops.selection import maximum, minimum, where
from pullback.transforms import value_and_grad

__all__ = ["LossScale", "cast", "computed_in"]


def cast(tree: Any, dtype: Any) -> Any:
    """The tree with its floating arrays in another dtype; integers and the rest as they are.

    >>> pb.train.cast({"w": pb.ones(1), "n": pb.tensor([1])}, "bfloat16")
    {'w': tensor([1.], bfloat16, cpu), 'n': tensor([1], int64, cpu)}
    """
    wanted = as_dtype(dtype)
    if not wanted.is_float:
        raise DTypeError(f"cast: the dtype must be floating, got {wanted.name}.")

    def one(x: Any) -> Any:
        is_float = isinstance(x, Array) and x._aval.dtype.is_float
        return astype(x, wanted, copy=False) if is_float else x

    return pytrees.map_tree(one, tree)


def computed_in(dtype: Any, f: Callable[..., Any]) -> Callable[..., Any]:
    """`f` computed in `dtype`: floating arguments are cast to it, and results to float32.

    The casts are differentiated too, so gradients by float32 parameters are float32.

    >>> loss = pb.train.computed_in("bfloat16", lambda w, x: pb.sum(w * x))
    >>> pb.grad(loss)(pb.ones(2), pb.tensor([1.0, 2.0]))
    tensor([1., 2.], float32, cpu)
    """

    expect_function("computed_in", f)
    if not as_dtype(dtype, "computed_in").is_float:
        raise DTypeError(f"computed_in: the dtype must be floating, got {dtype!r}.")

    @wraps(f)
    def called(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = cast((args, kwargs), dtype)
        return cast(f(*args, **kwargs), float32)

    return called


class LossScale:
    """Gradients of a loss that is scaled up while it is differentiated, and a scale that adapts.

    A step whose gradients are not finite is to be left out: `chosen` keeps the old parameters. The
    scale is halved then, and doubled after `growth_interval` finite steps.

    >>> scaling = pb.train.LossScale(initial=1024.0)
    >>> state = scaling.init()
    >>> loss = pb.train.computed_in("float16", lambda w: pb.sum(w * w) * 1e-4)
    >>> derive = scaling.value_and_grad(loss)
    >>> value, gradient, finite, state = derive(state, pb.tensor([1e-4, 1.0]))
    >>> bool(finite), bool(gradient[0] > 1e-8)  # 2e-8 would be 0 in float16
    (True, True)
    """

    def __init__(self, initial: float = 2.0**15, growth_interval: int = 2000):
        if not initial >= 1.0 or growth_interval < 1:
            raise ShapeError(
                "LossScale: initial and growth_interval must be at least 1, got"
                f" {initial} and {growth_interval}."
            )
        self.initial, self.growth_interval = initial, growth_interval

    def init(self) -> dict[str, Any]:
        """The state before the first step."""
        scale = full((), self.initial, dtype=float32)
        return {"scale": scale, "finite_steps": zeros((), dtype="int32")}

    def value_and_grad(
        self, f: Callable[..., Any], argnums: Any = 0, has_aux: bool = False
    ) -> Callable[..., Any]:
        """The function of (state, *args) that gives value, gradient, whether all of the gradient is
        finite, and the next state.
        """

        def scaled(scale: Any, *args: Any) -> Any:
            found = f(*args)
            value, aux = found if has_aux else (found, None)
            return astype(value, float32) * scale, (value, aux)

        shifted = argnums + 1 if isinstance(argnums, int) else tuple(n + 1 for n in argnums)
        derive = value_and_grad(scaled, shifted, has_aux=True)

        def called(state: dict[str, Any], *args: Any) -> Any:
            (_, (value, aux)), gradient = derive(state["scale"], *args)
            chosen = pytrees.Parameters(gradient)
            wide = [astype(g, float32, copy=False) / state["scale"] for g in chosen.leaves]
            finite = as_array(True, "LossScale")
            for g in wide:
                finite = finite & all_(isfinite(g))
            pairs = zip(wide, chosen.leaves, strict=True)
            unscaled = chosen.replaced([astype(w, g._aval.dtype, copy=False) for w, g in pairs])
            value = (value, aux) if has_aux else value
            return value, unscaled, finite, self._next(state, finite)

        return called

    def _next(self, state: dict[str, Any], finite: Any) -> dict[str, Any]:
        steps = where(finite, state["finite_steps"] + 1, 0)
        grow = steps >= self.growth_interval
        scale = state["scale"]
        larger, smaller = minimum(scale * 2.0, 2.0**24), maximum(scale * 0.5, 1.0)
        return {
            "scale": where(finite, where(grow, larger, scale), smaller),
            "finite_steps": where(grow, 0, steps),
        }

    @staticmethod
    def chosen(finite: Any, new: Any, old: Any) -> Any:
        """`new` where the gradients were finite, else `old`: trees of one structure."""
        return pytrees.map_tree(lambda a, b: where(finite, a, b), new, old)
