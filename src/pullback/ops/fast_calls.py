"""The public functions of operations on elements, generated from a template.

A call is one dictionary look-up, one native call and one node; whatever is not that simple goes to
the general rules.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from pullback.core.avals import Aval, aval
from pullback.core.dtypes import DType
from pullback.core.errors import CAUSED, shorten
from pullback.ir import op as ir_op
from pullback.ir.array import Node, handle, make, mode, next_order
from pullback.ir.convert import fresh_scalar, in_range
from pullback.ir.op import Op, first_bind, keep_plan
from pullback.ir.plans import MAX_PLANS, Plan, plan_caches
from pullback.ir.rules import saved_source
from pullback.ops.promotion import is_operand

__all__ = ["fast_function"]

_TEMPLATE = """
def call({params}, /):
    try:{constant}
        plan = plans[{avals}]
    except (KeyError, AttributeError):
        return slow({params})
    out = handle.cls()
    out._buf = plan.run({bufs})
    out._aval = plan.aval
    if {untracked} or not mode.recording:
        out._node = None
    else:
        {names} = {nodes}
        node = Node()
        node.op = op
        node.edges = {edges}
        node.avals = {aval_tuple}
        node.aval = plan.aval
        node.static = nothing
        node.saved = {saved}
        node.order = next_order()
        node.extra = None
        out._node = node
    return out
"""


# A zero is looked up by its text: 0.0 and -0.0 would share a key.
_CONSTANT = """
        if type({b}) in numbers:
            key = {b} or repr({b}), type({b}), {a}._aval.dtype.name, {a}._aval.device
            try:
                {b} = constants[key]
            except KeyError:
                {b} = constant(constants, key, {b}, {a}._aval.dtype)
        elif type({a}) in numbers:
            key = {a} or repr({a}), type({a}), {b}._aval.dtype.name, {b}._aval.device
            try:
                {a} = constants[key]
            except KeyError:
                {a} = constant(constants, key, {a}, {b}._aval.dtype)"""


MOST_CONSTANTS = 256  # of one operation; a loop over ever new numbers starts over


def _constant(constants: dict[tuple, Any], key: tuple, number: Any, dtype: DType) -> Any:
    """A Python number that has the dtype of the array beside it, as an array, which is kept.

    A KeyError leaves it to the general rules of promotion.
    """
    if dtype.kind not in "fc" and (dtype.kind not in "iu" or number.__class__ is float):
        raise KeyError(number)
    if dtype.kind in "iu" and not in_range(number, dtype):
        raise KeyError(number)
    if len(constants) >= MOST_CONSTANTS:
        constants.clear()
    found = constants[key] = fresh_scalar(number, dtype, key[-1])
    return found


def fast_function(
    op: Op, prepare: Callable[..., list[Any]], pair: Sequence[int]
) -> Callable[..., Any]:
    """The public function of an elementwise operation: one dictionary look-up, one native call, one
    node.

    `pair` is where two operands stand that are promoted together: of these one may be a number.
    """
    constants: dict[tuple, Any] = {}  # Python numbers met beside an array, as arrays
    kinds: dict[tuple | None, Plan] = {}  # plans of some shape, from which those of others are made
    seen: set[int] = set()  # hashes of what was met once
    plan_caches.append(kinds)

    def again(args: Sequence[Any]) -> Any:
        """The result for operands that differ by their shape alone from earlier ones, else None.

        Only shapes that come back get a plan to keep.
        """
        try:
            avals = tuple([a._aval for a in args])
        except AttributeError:
            return None
        if avals[0].strides is None:  # traced
            return None
        kind, whole = _kind(avals)
        known = kinds.get(kind)
        if known is None or whole is None:
            return None
        plan = _resized(known, avals, whole)
        if (met := hash((kind, whole.shape))) in seen:
            keep_plan(op, avals[0] if len(avals) == 1 else avals, plan)
        elif len(seen) < MAX_PLANS:
            seen.add(met)
        else:
            seen.clear()
        out = make(plan.run(*[a._buf for a in args]), plan.aval)
        if mode.recording and op.vjp:
            for a in args:
                if a._node is not None:
                    out._node = ir_op.record(op, args, {}, out)
                    break
        return out

    def slow(*args: Any) -> Any:
        try:
            out = again(args)
            return first(*args) if out is None else out
        except CAUSED as error:
            shorten(error)
            raise error

    def stepping_back(*args: Any) -> Any:
        try:
            out = again(args)
            if out is not None:
                return out
            for a in args:
                if a.__class__ is not handle.cls and not is_operand(op.name, a):
                    return NotImplemented
            return first(*args)
        except CAUSED as error:
            shorten(error)
            raise error

    promotes_all = len(op.names) == max(1, len(pair))
    accepted = op.accepts  # type: ignore[attr-defined]

    def is_ready(args: tuple) -> bool:
        """Whether there is nothing to prepare: arrays of one dtype, which the operation takes."""
        dtype = args[0]._aval.dtype if args[0].__class__ is handle.cls else None
        if not promotes_all or dtype is None or dtype.kind not in accepted:
            return False
        return all([a.__class__ is handle.cls and a._aval.dtype is dtype for a in args])

    def first(*args: Any) -> Any:
        ready = is_ready(args)
        arrays = args if ready else prepare(*args)
        avals = tuple([a._aval for a in arrays])
        key = avals[0] if len(avals) == 1 else avals
        if key in op.plans:
            return fast(*arrays)
        out = first_bind(op, arrays, {}, key)
        plan = op.plans.get(key)
        if plan is not None:
            if ready and plan.sized is not None and (kind := _kind(avals)[0]) is not None:
                kinds[kind] = plan
            return fast(*arrays) if any([a._node is not None for a in arrays]) else out
        if mode.recording and op.vjp:  # traced
            out._node = ir_op.record(op, arrays, {}, out)
        return out

    source = _fast_source(op, pair)
    scope = {
        "numbers": frozenset((int, float)), "constants": constants, "constant": _constant,
        "plans": op.plans, "slow": slow,
        "handle": handle, "mode": mode, "Node": Node, "op": op,
        "nothing": {}, "next_order": next_order, "__name__": __name__,
    }  # fmt: skip
    code = _compiled(source)
    exec(code, scope)
    fast: Any = scope["call"]
    # The operator form steps back for operands of foreign types, so that their own methods get a
    # chance.
    exec(code, scope := {**scope, "slow": stepping_back})
    fast.operator = scope["call"]
    return fast


def _kind(avals: Sequence[Aval]) -> tuple[tuple | None, Aval | None]:
    """What operands of ever new shapes have in common: dtypes, and which repeat one element; and
    an operand that has the shape of the result.

    None for all but the most common calls, where every operand has that shape or none.
    """
    kind: list[Any] = [avals[0].device]
    whole = None
    for a in avals:
        if a.repeats is None or a.device is not kind[0]:
            return None, None
        if a.ndim:
            if whole is None:
                whole = a
            elif a.shape != whole.shape:
                return None, None
        kind += (a.dtype.name, a.repeats)
    return (None if whole is None or whole.size < 2 else tuple(kind)), whole


def _resized(plan: Plan, avals: Sequence[Aval], whole: Aval) -> Plan:
    """The plan of operands of another shape, of which `_kind` says the same."""
    dtype, sized = plan.aval.dtype, plan.sized
    assert sized is not None
    for a in avals:
        if a.repeats is False and a.dtype is dtype:
            return Plan(sized(a.size), a, sized)
    return Plan(sized(whole.size), aval(whole.shape, dtype, whole.device), sized)


@lru_cache
def _compiled(source: str) -> Any:
    """The code of a fast function; operations of one shape share it, which is most of the import
    time saved.
    """
    return compile(source, "<elementwise operation>", "exec")


def _fast_source(op: Op, pair: Sequence[int]) -> str:
    """The template filled in for the arity of `op` and for what its rules save; operands are named
    a0, a1 ...
    """
    positions = range(len(op.names))

    def joined(pattern: str) -> str:
        return ", ".join(pattern.format(i) for i in positions)

    ruled = [i for i in positions if op.names[i] in op.vjp]
    untracked = " and ".join(f"a{i}._node is None" for i in ruled)
    source = _TEMPLATE.format(
        params=joined("a{}"),
        constant=_CONSTANT.format(a=f"a{pair[0]}", b=f"a{pair[1]}") if pair else "",
        avals=joined("a{}._aval"),
        bufs=joined("a{}._buf"),
        untracked=f"({untracked})" if ruled else "True",
        names=joined("n{}"),
        nodes=joined("a{}._node"),
        edges="(" + "".join(f"n{i}, " if i in ruled else "None, " for i in positions) + ")",
        aval_tuple=f"({joined('a{}._aval')},)",
        saved=saved_source(op),
    )
    # a call that lacks an operand is told its name
    return re.sub(r"\ba(\d+)\b", lambda found: op.names[int(found[1])], source)
