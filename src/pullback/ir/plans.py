"""Prepared launches, which are kept per operation and run without asking who looks on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from weakref import ref

from pullback.core.avals import Aval
from pullback.ir.array import mode

__all__ = ["MAX_PLANS", "Plan", "active", "forget_plans", "observed", "plan_caches", "same_memory"]

MAX_PLANS = 4096  # per operation; a program with ever-new shapes starts over rather than grow

active: list[ref[Any]] = []  # the observers of all threads: see `observing`
plan_caches: list[dict[Any, Any]] = []  # all places where plans are kept


class Plan(NamedTuple):
    """A prepared launch: `run(*buffers)` gives the buffer of an array described by `aval`.

    `sized(n)` is the run of operands of the same kinds that have n elements, where that is all that
    it needs to know of their shapes: operands of the shape of the result that are dense, or of
    which one element is seen from everywhere.
    """

    run: Callable[..., Any]
    aval: Aval
    sized: Callable[[int], Callable[..., Any]] | None = None


def same_memory(buf: Any) -> Any:
    """The run of an operation that gives the memory of its operand."""
    return buf


def observed(op: Any, plan: Plan, avals: Sequence[Aval]) -> Plan:
    """The plan that the observer of the thread runs, if it has one."""

    def run(*bufs: Any) -> Any:
        observer = mode.observer
        if observer is None:
            return plan.run(*bufs)
        return observer.operation(op, plan, avals, bufs)

    return plan._replace(run=run, sized=None)


def forget_plans() -> None:
    """Prepare all launches anew from here on."""
    for plans in plan_caches:
        plans.clear()
