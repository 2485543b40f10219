"""Loops over known arrays as compiled units: what runs for many steps need not run in Python."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any
from weakref import WeakKeyDictionary, ref

from pullback.compiled import Jitted
from pullback.core.errors import GradientError, TraceError
from pullback.ir.array import mode
from pullback.ir.tracing import inside_trace

__all__ = ["compiled_loop"]

# Steps that a function makes in Python before it is compiled. To trace and plan a small body takes
# some milliseconds, a step of it in Python some ten microseconds.
STEPS = 256
TRACES = 8  # of one function: beyond that its captured values change too often for it to pay
_ATTRIBUTE = "__pullback_loops__"


class _Exact(Jitted):
    """A compiled function with the bits that it has step by step."""

    exact = True


class _History:
    """What is known of a function: how often it ran, and what was compiled."""

    def __init__(self, owner: Any = None):
        self.owner = owner
        self.steps = 0
        self.calls = 0
        self.units: dict[tuple, _Exact] = {}
        self.in_python = False  # it needs values, or changes what it captures


# Of functions that capture nothing but their module, which may be made anew for each call.
_plain: WeakKeyDictionary[CodeType, _History] = WeakKeyDictionary()


def _history(function: Callable[..., Any]) -> _History:
    """The history of a function: its own if it captures something. Other callables have none."""
    if not isinstance(function, FunctionType):
        return _History()
    if function.__closure__ or function.__defaults__ or function.__kwdefaults__:
        found = function.__dict__.get(_ATTRIBUTE)
        if found is None or found.owner() is not function:  # wrappers copy attributes
            found = function.__dict__[_ATTRIBUTE] = _History(ref(function))
        return found
    found = _plain.get(function.__code__)
    if found is None or found.owner is not function.__globals__:
        found = _plain[function.__code__] = _History(function.__globals__)
    return found


def compiled_loop(
    body: Callable[..., Any], loop: Callable[..., Any], key: tuple, steps: int, *args: Any
) -> Any:
    """`loop(*args)`, which runs `body` for so many steps, as a compiled unit; None where that does
    not pay or can't be. `key` tells loops of one body apart.
    """
    if mode.level is not None or mode.observer is not None or inside_trace():
        return None
    known = _history(body)
    known.steps += steps
    known.calls += 1
    if known.in_python or known.steps < STEPS:
        return None
    unit = known.units.get(key)
    if unit is None:
        unit = _Exact(loop, name=getattr(body, "__name__", "loop"))
        if known.calls > 1:  # one that is made anew for each call keeps nothing
            known.units[key] = unit
    elif unit.cache_info().misses >= TRACES:
        return None
    try:
        if unit.lower(*args).captures_variables:
            return None  # second derivatives by what a compiled function captures are not possible
        return unit(*args)
    except (TraceError, GradientError):
        known.in_python = True
        return None
