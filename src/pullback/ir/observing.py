"""Watching operations while they run, at no cost while nobody does.

Plans are kept, and run without asking who looks on. So a block that watches lets all kept plans be
forgotten; until it ends, new ones lead through the observer of the thread that they run in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any
from weakref import ref

from pullback.core.avals import Aval
from pullback.core.blocks import Restored
from pullback.ir.array import mode
from pullback.ir.op import Op
from pullback.ir.plans import Plan, active, forget_plans

__all__ = ["Observer", "Observing"]


class Observer:
    """Who runs the operations of a thread in place of the library, and gives their results."""

    inlines = False  # whether jitted functions run as if they were not jitted

    def operation(self, op: Op, plan: Plan, avals: Sequence[Aval], bufs: Sequence[Any]) -> Any:
        """The buffer that the plan of an operation gives."""
        return plan.run(*bufs)

    def program(self, program: Any, bufs: Sequence[Any], avals: Sequence[Aval]) -> list[Any]:
        """The buffers that a compiled program computes."""
        return program.run(bufs, avals)


def _ended(observer: ref[Observer]) -> None:
    active.remove(observer)
    if not active:
        forget_plans()


class Observing:
    """A block, or a decorated function, of whose thread `make()` gives the observer.

    Blocks inside of each other do not add up: the innermost one observes. What the end of a block
    has to do is done when the observer is gone, so that no interrupt can come before it.
    """

    def __init__(self, make: Callable[[], Observer]):
        self._make = make

    def __enter__(self) -> None:
        observer = self._make()
        active.append(ref(observer, _ended))
        forget_plans()
        mode.observer = observer

    __exit__ = Restored(mode, "observer")

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            with Observing(self._make):
                return function(*args, **kwargs)

        return called
