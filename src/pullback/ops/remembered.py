"""A memory of calls: what normalising their arguments came to, so that it happens once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import update_wrapper
from marshal import dumps
from typing import Any, TypeAlias

from pullback.core.errors import PullbackError, shorten
from pullback.ir.array import make, mode
from pullback.ir.op import Op, record
from pullback.ir.plans import MAX_PLANS, Plan, plan_caches, same_memory

__all__ = ["SEQUENCE", "remembering", "remembering_chain"]


_Call: TypeAlias = Callable[..., Any]
_Calls: TypeAlias = dict[tuple, tuple[dict[str, Any], Plan]]

SEQUENCE = -1  # stands for the number of arrays in front, where they come as one sequence


def remembering_chain(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` of a sequence of arrays with a memory of calls that came to operations of which
    each takes the result of the one before: a repeated call runs their plans, where nobody records.
    """
    calls: dict[tuple, Plan] = {}
    plan_caches.append(calls)

    def first_call(xs: Any, kwargs: dict[str, Any], key: tuple) -> Any:
        before, mode.binds = mode.binds, []
        try:
            out = function(xs, **kwargs)
            plan = _chained(mode.binds, xs, out)
        finally:
            mode.binds = before
        if plan is not None:
            if len(calls) >= MAX_PLANS:
                calls.clear()
            calls[key] = plan
        return out

    def call(xs: Any, /, *rest: Any, **kwargs: Any) -> Any:
        if rest or (xs.__class__ is not list and xs.__class__ is not tuple):
            return function(xs, *rest, **kwargs)
        try:
            key = (tuple([x._aval for x in xs if x._node is None]), bytes_of((), kwargs))
        except (AttributeError, ValueError):  # no array, or arguments that can't be a key
            return function(xs, **kwargs)
        if len(key[0]) < len(xs):  # somebody records
            return function(xs, **kwargs)
        plan = calls.get(key)
        if plan is None:
            return first_call(xs, kwargs, key)
        return make(plan.run(*[x._buf for x in xs]), plan.aval)

    return update_wrapper(call, function)


def _chained(binds: list, xs: Any, out: Any) -> Plan | None:
    """The plan of operations that were run one after the other, the first on the arrays `xs`."""
    given, run, last = xs, None, None
    for _, arrays, _, plan, result in binds:
        if plan is None or not _are(arrays, given):
            return None
        run, last, given = _after(run, plan.run), plan.aval, (result,)
    return Plan(run, last) if given[0] is out and run is not None and last is not None else None


def _after(first: Callable[..., Any] | None, then: Callable[..., Any]) -> Callable[..., Any]:
    """One run after another one."""
    if first is None:
        return then
    return first if then is same_memory else lambda *bufs: then(first(*bufs))


def remembering(
    op: Op, function: Callable[..., Any], front: int, setting: Callable[[], Any] | None = None
) -> Callable[..., Any]:
    """`function` with a memory of what its calls came to, so that a repeated call goes straight to
    its plan; what they come to depends on `setting` too.
    """
    noted = bytes_of
    if setting is not None:
        noted = lambda rest, kwargs: (setting(), bytes_of(rest, kwargs))  # noqa: E731
    calls: dict[tuple, tuple[dict[str, Any], Plan]] = {}
    plan_caches.append(calls)

    def first_call(args: tuple, kwargs: dict[str, Any], key: tuple | None) -> Any:
        before, mode.binds = mode.binds, []
        try:
            out = function(*args, **kwargs)
            seen = mode.binds
        finally:
            mode.binds = before
        if key is not None and len(seen) == 1:
            bound, arrays, static, plan, result = seen[0]
            given = args[0] if front == SEQUENCE else args[:front]
            if plan is not None and bound is op and result is out and _are(arrays, given):
                if len(calls) >= MAX_PLANS:
                    calls.clear()
                calls[key] = (static, plan)
        return out

    made = {1: _of_one, 2: _of_two, SEQUENCE: _of_several}[front]
    quick: Any = update_wrapper(made(op, function, noted, calls, first_call), function)
    quick.op = op
    return quick


def _are(arrays: Sequence[Any], given: Sequence[Any]) -> bool:
    """Whether an operation ran on these arrays, or on other handles of them."""
    return len(arrays) == len(given) and all(
        [a._buf is b._buf and a._aval is b._aval for a, b in zip(arrays, given, strict=True)]
    )


# The same call for each number of arrays, written out: a loop over them would take as long as it.


def _of_one(op: Op, function: _Call, noted: _Call, calls: _Calls, first_call: _Call) -> _Call:
    def one(x: Any, /, *rest: Any, **kwargs: Any) -> Any:
        key = None
        try:
            try:
                key = (x._aval, noted(rest, kwargs))
                static, plan = calls[key]
            except KeyError:
                if x._aval.strides is None:  # traced
                    return function(x, *rest, **kwargs)
                return first_call((x, *rest), kwargs, key)
            except (AttributeError, ValueError):  # no array, or arguments that can't be a key
                return first_call((x, *rest), kwargs, None)
            out = make(plan.run(x._buf), plan.aval)
        except (PullbackError, TypeError) as error:
            shorten(error)
            raise error
        if x._node is not None and mode.recording and op.vjp:
            out._node = record(op, (x,), static, out)
        return out

    return one


def _of_two(op: Op, function: _Call, noted: _Call, calls: _Calls, first_call: _Call) -> _Call:
    def two(x: Any, y: Any, /, *rest: Any, **kwargs: Any) -> Any:
        key = None
        try:
            try:
                key = (x._aval, y._aval, noted(rest, kwargs))
                static, plan = calls[key]
            except KeyError:
                if x._aval.strides is None or y._aval.strides is None:
                    return function(x, y, *rest, **kwargs)
                return first_call((x, y, *rest), kwargs, key)
            except (AttributeError, ValueError):
                return first_call((x, y, *rest), kwargs, None)
            out = make(plan.run(x._buf, y._buf), plan.aval)
        except (PullbackError, TypeError) as error:
            shorten(error)
            raise error
        if (x._node is not None or y._node is not None) and mode.recording and op.vjp:
            out._node = record(op, (x, y), static, out)
        return out

    return two


def _of_several(op: Op, function: _Call, noted: _Call, calls: _Calls, first_call: _Call) -> _Call:
    def several(xs: Any, /, *rest: Any, **kwargs: Any) -> Any:
        key = None
        try:
            try:
                if xs.__class__ is not list and xs.__class__ is not tuple:
                    return first_call((xs, *rest), kwargs, None)
                key = (tuple([x._aval for x in xs]), noted(rest, kwargs))
                static, plan = calls[key]
            except KeyError:
                return first_call((xs, *rest), kwargs, key)
            except (AttributeError, ValueError):
                return first_call((xs, *rest), kwargs, None)
            out = make(plan.run(*[x._buf for x in xs]), plan.aval)
        except (PullbackError, TypeError) as error:
            shorten(error)
            raise error
        if mode.recording and op.vjp:
            for x in xs:
                if x._node is not None:
                    out._node = record(op, xs, static, out)
                    break
        return out

    return several


def bytes_of(rest: tuple, kwargs: dict[str, Any]) -> bytes:
    """Arguments as a key: as bytes, since 1, 1.0 and True are equal but not equally good."""
    return dumps((rest, kwargs), 2) if rest or kwargs else b""
