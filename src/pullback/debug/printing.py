"""`print`: values on their way through compiled code."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any

import numpy as np

from pullback.core import pytrees
from pullback.core.errors import DTypeError, briefly
from pullback.ir.array import Array, mode
from pullback.ir.convert import from_numpy
from pullback.ir.effects import EFFECT, Receiver
from pullback.ir.op import bind
from pullback.ir.tracing import innermost

__all__ = ["print"]


@briefly
def print(text: str, /, *args: Any, **kwargs: Any) -> None:
    """Print `text.format(*args, **kwargs)` whenever this place is run, in traced functions too.

    A jitted function prints while it runs, in the order of the program, loops and branches
    included; Python's own `print` shows traced values without numbers, and once.

    >>> @pb.jit
    ... def f(x):
    ...     y = x * 2
    ...     pb.debug.print("y = {}, a mean of {:.1f}", y, y.mean())
    ...     return y.sum()
    >>> total = f(pb.tensor([1.0, 2.0]))
    y = tensor([2., 4.], float32, cpu), a mean of 3.0

    In `vmap` it prints for each example, where that differs from one to the other; what a branch
    prints that only some examples take is printed for all, with values of those that take it.
    Derivatives leave it alone: what is computed twice for them is printed twice.
    """
    if not isinstance(text, str):
        raise DTypeError(
            f"print: expected a text with a place {{}} for each value, got {type(text).__name__}."
        )
    leaves, structure = pytrees.flatten((args, kwargs))
    places = [i for i, x in enumerate(leaves) if isinstance(x, Array)]
    arrays = [leaves[i] for i in places]
    graph: Any = mode.scope if mode.scope is not None else innermost()
    if graph is None and not any(x._aval.is_symbolic for x in arrays):
        builtins.print(text.format(*args, **kwargs))
        return
    fixed = [None if isinstance(x, Array) else x for x in leaves]

    def formatted(values: Sequence[Any]) -> str:
        shown = list(fixed)
        for i, value in zip(places, values, strict=True):
            shown[i] = from_numpy(np.asarray(value), copy=False)
        given, named = pytrees.unflatten(structure, shown)
        return text.format(*given, **named)

    # A text that does not fit the values is an error here, and not when the program runs.
    formatted([np.zeros(x._aval.shape, x._aval.dtype.numpy) for x in arrays])
    receiver = Receiver(lambda values: builtins.print(formatted(values)), len(arrays))
    if any(x._aval.is_symbolic for x in arrays):
        bind(EFFECT, *arrays, receiver=receiver)
    else:
        EFFECT.add(graph, arrays, receiver)
