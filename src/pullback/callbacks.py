"""`pure_callback`: functions of NumPy arrays among operations, compiled or not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from pullback.core import pytrees
from pullback.core.avals import default_device
from pullback.core.errors import ShapeError, briefly, expect_function
from pullback.ir.convert import as_array
from pullback.ops.host import HostFunction, Result, called, name_of

__all__ = ["pure_callback"]


@briefly
def pure_callback(f: Callable[..., Any], like: Any, *args: Any, vectorized: bool = False) -> Any:
    """`f(*args)` for a function of NumPy arrays; its result is a tree of arrays `like` the given.

    `f` runs whenever the value is needed, also in the middle of a compiled function, once or more
    often, and must give the same result each time; what it raises is raised by the call. It must
    not call pullback. Under `vmap` it is called for each example, or, where it is `vectorized`,
    once for arrays with axes of examples in front. It has no derivative: use `custom_jvp` or
    `custom_vjp` to give it one.

    >>> f = pb.jit(lambda x: pb.pure_callback(np.sinc, x, x * 2.0) + 1.0)
    >>> f(pb.tensor([0.0, 0.5]))
    tensor([2., 1.], float32, cpu)
    """
    expect_function("pure_callback", f)
    leaves, structure = pytrees.flatten(like)
    shapes = [as_array(x, "pure_callback")._aval for x in leaves]
    given, arguments = pytrees.flatten(args)
    arrays = [as_array(x, "pure_callback") for x in given]

    results = tuple([Result(av.shape, av.dtype) for av in shapes])
    host = _host(f, results, structure, arguments, bool(vectorized))
    outs = called(host, arrays, default_device())
    return pytrees.unflatten(structure, outs)


@lru_cache(maxsize=256)  # one object for each function, so that calls of it are prepared once
def _host(
    f: Callable[..., Any],
    results: tuple[Result, ...],
    structure: pytrees.Structure,
    arguments: pytrees.Structure,
    vectorized: bool,
) -> HostFunction:
    def flat(*values: np.ndarray) -> Sequence[Any]:
        outs, found = pytrees.flatten(f(*pytrees.unflatten(arguments, values)))
        if found != structure:
            raise ShapeError(
                f"pure_callback: `{name_of(f)}` must return a tree like `like`:"
                f" {pytrees.difference(structure, found, 'the result')}."
            )
        return outs

    return HostFunction("pure_callback", name_of(f), flat, results, vectorized)
