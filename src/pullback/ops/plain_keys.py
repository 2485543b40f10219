"""Keys of integers and slices alone: what they select is found by arithmetic.

What does not depend on where a box begins is worked out once for each kind of key, so that
`x[k]` and `x[k:k + n]` with ever new `k` cost no more than with the same one.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import mul
from typing import Any, NamedTuple

import numpy as np

from pullback.core.avals import Aval, aval
from pullback.ir.array import Array, make, mode
from pullback.ir.op import record
from pullback.ir.plans import MAX_PLANS, active, plan_caches
from pullback.ops import movement

__all__ = ["KeyPlan", "elements", "place", "put", "view", "write", "writers"]

Shape = tuple[int, ...]


class KeyPlan(NamedTuple):
    """What all keys of one kind select from arrays of one kind, wherever their box begins."""

    strides: Shape  # in bytes, of the axes that the key names; 0 where nothing is selected
    aval: Aval  # of the view
    shape: Shape  # of the box, with all axes of the array
    steps: Shape
    rest: Shape  # where the box begins on the axes that the key does not name
    at: Callable[[Any, int], Any]  # a buffer from a byte on

    def static(self, starts: list[int]) -> dict[str, Any]:
        """The static arguments of the slice."""
        whole = (*starts, *self.rest)
        return {"starts": whole, "shape": self.shape, "steps": self.steps, "to": self.aval.shape}


class BoxWriter(NamedTuple):
    """How values of one kind get into boxes of one kind, of dense arrays."""

    write: Callable[[Any, Any], Any]  # takes the buffers of the box and of the value
    copy: Callable[[Any], Any]  # of the whole array
    at_once: bool  # whether nothing can come between, so that no half of it is ever seen


_INTEGERS = frozenset({int, np.int64, np.int32, np.uint32, np.uint64, np.intp})
_INTEGER = -1  # in a kind of key: an axis that an integer takes away

_key_plans: dict[tuple, KeyPlan] = {}
writers: dict[
    tuple[Aval, Aval, Aval], BoxWriter
] = {}  # by avals of the array, the box and the value
plan_caches += [_key_plans, writers]


def place(av: Aval, key: Any) -> tuple[list[int], KeyPlan] | None:
    """Where the box of a key begins on the axes that it names, and its plan.

    None for what is left to `keys`: other kinds of keys, those that don't fit, and traced arrays.
    """
    kind: list[Any] = [av]
    starts = []
    try:
        for n, item in zip(av.shape, key, strict=False):
            c = item.__class__
            if c is slice:
                start, stop, step = item.indices(n)
                size = len(range(start, stop, step))
                starts.append(start if size else 0)
                kind.append((size, step if size > 1 else 1))
            elif c in _INTEGERS and -n <= item < n:
                starts.append(int(item) % n)
                kind.append(_INTEGER)
            else:
                return None
        plan = _key_plans.get(tuple(kind))
    except (TypeError, ValueError):  # of slices whose bounds are no integers
        return None
    if plan is None:
        if len(key) > av.ndim or av.is_symbolic or active:
            return None
        plan = _key_plan(av, kind[1:])
        if len(_key_plans) >= MAX_PLANS:
            _key_plans.clear()
        _key_plans[tuple(kind)] = plan
    elif len(key) > av.ndim:
        return None
    return starts, plan


def _key_plan(av: Aval, kind: list[Any]) -> KeyPlan:
    assert av.strides is not None
    left = range(len(kind), av.ndim)
    parts = [(1, 1) if k == _INTEGER else k for k in kind] + [(av.shape[d], 1) for d in left]
    kept = [d for d in range(av.ndim) if d >= len(kind) or kind[d] != _INTEGER]
    shape, steps = tuple(n for n, _ in parts), tuple(step for _, step in parts)
    new = aval(
        tuple(shape[d] for d in kept),
        av.dtype,
        av.device,
        tuple(steps[d] * av.strides[d] for d in kept),
    )
    size = av.dtype.itemsize if new.size else 0
    strides = tuple(s * size for s in av.strides[: len(kind)])
    return KeyPlan(strides, new, shape, steps, (0,) * len(left), av.device.runtime.target.view)


def view(x: Array, key: Any) -> Any:
    """The part of `x` that a key selects, as a view; None for what is left to `keys`."""
    found = place(x._aval, key)
    if found is None:
        return None
    starts, plan = found
    at = sum(map(mul, starts, plan.strides))
    out = make(plan.at(x._buf, at) if at else x._buf, plan.aval)
    if x._node is not None and mode.recording:
        op = movement.slice.op
        out._node = record(op, (x,), plan.static(starts), out)
    return out


_element_plans: dict[Aval, KeyPlan] = {}
plan_caches.append(_element_plans)


def elements(x: Any) -> list[Any]:
    """`[x[0], x[1], ...]` of a vector that nobody differentiates by, for one look-up."""
    plan = _element_plans.get(x._aval)
    if plan is None or x._node is not None:
        found = place(x._aval, (0,))
        if found is not None and x._node is None and len(_element_plans) < MAX_PLANS:
            _element_plans[x._aval] = found[1]
        return [x[k] for k in range(x._aval.shape[0])]
    buf, (stride,) = x._buf, plan.strides
    rest = [make(plan.at(buf, k * stride), plan.aval) for k in range(1, x._aval.shape[0])]
    return [make(buf, plan.aval), *rest]


def put(x: Array, starts: list[int], plan: KeyPlan, value: Any) -> bool:
    """Write a Python number to an element of an array that nobody differentiates by, and that
    nobody but the handle `x` has; False: it is left to `write`.
    """
    runtime = x._aval.device.runtime
    if plan.aval.ndim or x._node is not None or not runtime.may_change(x._buf):
        return False
    at = sum(map(mul, starts, plan.strides))
    return runtime.put(x._buf, at, value, plan.aval.dtype)


def write(x: Array, starts: list[int], plan: KeyPlan, value: Array) -> Any:
    """The dense array `x` with a value, which broadcasts to the box, written to its place.

    What nobody but the handle `x` has is written to; everything else is copied first.
    """
    av, runtime = x._aval, x._aval.device.runtime
    key = (av, plan.aval, value._aval)
    writer = writers.get(key)
    if writer is None:
        if len(writers) >= MAX_PLANS:
            writers.clear()
        at_once = plan.aval.size <= runtime.target.tuning.light_elements
        made = runtime.writer(plan.aval, value._aval)
        writer = writers[key] = BoxWriter(made, runtime.copier(av), at_once)
    own = writer.at_once and runtime.may_change(x._buf)
    buf = x._buf if own else writer.copy(x._buf)
    at = sum(map(mul, starts, plan.strides))
    writer.write(plan.at(buf, at), value._buf)
    return make(buf, av)
