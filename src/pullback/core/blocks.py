"""`with` blocks that change an attribute, and that no interrupt can leave changed.

Python handles signals when a function of its own starts, and after calls. So an `__exit__` written
in Python may be interrupted before it has done anything, and a generator may be left suspended. An
assignment, and a call into C, cannot.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any

__all__ = ["Restored"]


def _setter(arguments: int) -> Callable[..., int]:
    """`setattr` in C that takes, and ignores, more than three arguments; it returns 0."""
    kind = ctypes.PYFUNCTYPE(ctypes.c_int, *[ctypes.py_object] * arguments)
    return kind(("PyObject_SetAttr", ctypes.pythonapi))


_from_instance, _from_class = _setter(6), _setter(7)


class Restored:
    """An `__exit__` that gives an attribute of `holder` the value it had before `__enter__`.

    `with` asks the instance for it before it enters, and `contextlib.ExitStack` the class; they
    call it with the exception, the latter with the instance too. `__enter__` must be a function
    that ends with the assignment.
    """

    def __init__(self, holder: Any, name: str):
        self._holder, self._name = holder, name

    def __get__(self, block: Any, owner: Any = None) -> Callable[..., Any]:
        setter = _from_class if block is None else _from_instance
        return partial(setter, self._holder, self._name, getattr(self._holder, self._name))
