"""`vmap`: a function of one example as a function of many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, NamedTuple

import numpy as np

from pullback.autodiff.batching import Level
from pullback.autodiff.maps import MapCall
from pullback.core import pytrees
from pullback.core.errors import DTypeError, ShapeError, briefly, expect_function
from pullback.ir.array import Array
from pullback.ir.convert import as_array
from pullback.ir.op import REGISTRY, another, bind

__all__ = ["vmap"]


class _Leaf(NamedTuple):
    """A leaf of the arguments or of the result, and the axis of its examples."""

    value: Any
    axis: int | None
    path: str


@briefly
def vmap(
    f: Callable[..., Any],
    in_axes: Any = 0,
    out_axes: Any = 0,
    axis_size: int | None = None,
) -> Callable[..., Any]:
    """The function that computes `f`, written for one example, for all examples of a batch at once.

    `in_axes` says along which axis an argument holds its examples: an int, or None for an argument
    that all examples share; for each argument, or for parts of it, where it is a tuple or a tree.
    `out_axes` says the same of the result. Keyword arguments are shared. Without an argument that
    is mapped over, `axis_size` gives the number of examples.

    >>> dot = lambda x, y: (x * y).sum()
    >>> pb.vmap(dot, in_axes=(0, None))(pb.tensor([[1.0, 2.0], [3.0, 4.0]]), pb.tensor([1.0, 10.0]))
    tensor([21., 43.], float32, cpu)

    No example sees another: derivatives inside `f` are those of one example.

    >>> pb.vmap(pb.grad(lambda x: (x ** 3).sum()))(pb.tensor([[1.0, 2.0], [3.0, 4.0]]))
    tensor([[ 3., 12.],
            [27., 48.]], float32, cpu)
    """
    expect_function("vmap", f)
    axes = tuple(in_axes) if isinstance(in_axes, list) else in_axes

    @briefly
    @wraps(f)
    def mapped(*args: Any, **kwargs: Any) -> Any:
        leaves, structure = _arguments(args, axes)
        size = _size(leaves, axis_size)
        call = MapCall(Level(_name_of(f), size))
        given = [_given(call, leaf) for leaf in leaves]
        result = call.level.within(f, *pytrees.unflatten(structure, given), **kwargs)
        call.level.refuse_updates()
        return _results(call, result, out_axes)

    return mapped


def _name_of(f: Callable[..., Any]) -> str:
    return getattr(f, "__name__", type(f).__name__)


# -- axes ------------------------------------------------------------------------------------------


def _spread(name: str, axes: Any, structure: pytrees.Structure) -> list[int | None]:
    """The axis of each leaf; `axes` may end earlier than the tree, and then holds for all below."""
    if axes is None or isinstance(axes, (int, np.integer)):
        if isinstance(axes, bool):
            raise DTypeError(f"vmap: {name} is made of integers and None, got {axes!r}.")
        return [None if axes is None else int(axes)] * structure.leaves
    parts = pytrees._children(axes)
    if parts is None:
        raise DTypeError(f"vmap: {name} is made of integers and None, got {axes!r}.")
    children, info = parts
    kinds = type(axes) is structure.kind or {type(axes), structure.kind} == {list, tuple}
    if not kinds or info != structure.info:
        raise ShapeError(
            f"vmap: {name} must look like what it is for, or end earlier, got {axes!r} for"
            f" {structure}."
        )
    pairs = zip(children, structure.children, strict=True)
    return [axis for a, s in pairs for axis in _spread(name, a, s)]


def _arguments(args: tuple, in_axes: Any) -> tuple[list[_Leaf], pytrees.Structure]:
    """The leaves of the arguments with their axes."""
    if isinstance(in_axes, tuple) and len(in_axes) != len(args):
        raise ShapeError(
            f"vmap: in_axes needs one entry for each argument, got {len(in_axes)} for {len(args)}."
        )
    values, structure = pytrees.flatten(args)
    axes = _spread("in_axes", in_axes, structure)
    paths = pytrees.paths(structure, "args")
    return [_Leaf(*leaf) for leaf in zip(values, axes, paths, strict=True)], structure


def _size(leaves: Sequence[_Leaf], axis_size: int | None) -> int:
    """The number of examples, on which all arguments agree."""
    found, where = axis_size, "axis_size"
    if axis_size is not None and (
        isinstance(axis_size, bool) or not isinstance(axis_size, (int, np.integer)) or axis_size < 0
    ):
        raise DTypeError(f"vmap: axis_size is a number of examples, got {axis_size!r}.")
    for value, axis, path in leaves:
        if axis is None:
            continue
        if not isinstance(value, (Array, np.ndarray)):
            raise DTypeError(
                f"vmap: {path} is to be mapped over, but is no array, got"
                f" {type(value).__name__}. Give it None in in_axes."
            )
        shape = value._aval.shape if isinstance(value, Array) else value.shape
        if not -len(shape) <= axis < len(shape):
            raise ShapeError(
                f"vmap: {path} has no axis {axis} to map over, got shape {shape}."
                " Give it another axis, or None, in in_axes."
            )
        if found is not None and shape[axis] != found:
            raise ShapeError(
                f"vmap: all arguments need the same number of examples, got {found} from {where}"
                f" and {shape[axis]} from {path}, which has shape {shape} and axis {axis}."
            )
        if found is None:
            found, where = shape[axis], path
    if found is None:
        raise ShapeError(
            "vmap: no argument is mapped over, got in_axes of None only. Pass axis_size."
        )
    return int(found)


# -- in and out ------------------------------------------------------------------------------------


def _moved(x: Any, start: int, end: int) -> Any:
    """The array with one of its axes in another place."""
    if start == end:
        return x
    order = [d for d in range(x._aval.ndim) if d != start]
    order.insert(end, start)
    return bind(REGISTRY["permute_dims"], x, axes=tuple(order))


def _given(call: MapCall, leaf: _Leaf) -> Any:
    """What the function gets for an argument."""
    value, axis, _ = leaf
    if axis is None:
        return another(value) if isinstance(value, Array) else value
    x = as_array(value, "vmap")
    return call.add(_moved(x, axis % x._aval.ndim, 0))


def _results(call: MapCall, result: Any, out_axes: Any) -> Any:
    """The result for all examples, with their axis where it is wanted."""
    values, structure = pytrees.flatten(result)
    axes = _spread("out_axes", out_axes, structure)
    paths = list(pytrees.paths(structure, "result"))
    arrays = [as_array(v, "vmap") for v in values]
    outs: list[Any] = [None] * len(arrays)
    kept = [i for i, axis in enumerate(axes) if axis is not None]
    for i, x in enumerate(arrays):
        if axes[i] is None and call.level.holds(x):
            raise ShapeError(
                f"vmap: {paths[i]} differs from example to example, but out_axes is None."
                " Give it an axis."
            )
        outs[i] = another(x)
    for i, x in zip(kept, call.close([arrays[i] for i in kept]), strict=True):
        ndim = x._aval.ndim
        axis: Any = axes[i]
        if not -ndim <= axis < ndim:
            raise ShapeError(
                f"vmap: {paths[i]} can't have its examples along axis {axis}, got results with"
                f" {ndim - 1} dimensions for each."
            )
        outs[i] = _moved(x, 0, axis % ndim)
    return pytrees.unflatten(structure, outs)
