"""What a Python function reads besides its arguments: cells, globals, defaults, and from there."""

from __future__ import annotations

from collections.abc import Callable
from dis import get_instructions
from functools import lru_cache, partial
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

__all__ = ["Captures"]

MAX_VISITED = 2000  # objects; what is further away is not looked at
_SCALARS = (bool, int, float, complex, str)
_FOREIGN = ("pullback", "numpy", "builtins")  # modules that hold no state of the user's


class Captures:
    """The arrays that a function can reach, and the places where it finds them, as they are now.

    Numbers and strings in cells, globals and attributes count too.
    """

    def __init__(self, function: Callable[..., Any], is_array: Callable[[Any], bool]):
        self.arrays: list[Any] = []
        self._is_array = is_array
        self._cells: list[tuple[CellType, Any]] = []
        self._items: list[tuple[dict, Any, Any]] = []
        self._lists: list[tuple[list, list]] = []
        self._seen: dict[int, Any] = {}
        self._visit(function)
        self._seen.clear()

    def __bool__(self) -> bool:
        return bool(self._cells or self._items or self._lists)

    def changed(self, lists: bool = True) -> bool:
        """Whether one of the places, elements of `lists` among them, holds something else now."""
        for cell, value in self._cells:
            try:
                if cell.cell_contents is not value:
                    return True
            except ValueError:  # the cell is empty
                return True
        for holder, key, value in self._items:
            if holder.get(key) is not value:
                return True
        for now, then in self._lists if lists else ():
            if len(now) != len(then) or any(a is not b for a, b in zip(now, then, strict=True)):
                return True
        return False

    def _visit(self, x: Any) -> bool:
        """Note what is reachable from `x`; whether that includes an array."""
        if self._is_array(x):
            self.arrays.append(x)
            return True
        if id(x) in self._seen or len(self._seen) >= MAX_VISITED:
            return False
        self._seen[id(x)] = x
        if isinstance(x, FunctionType):
            return self._function(x)
        if isinstance(x, MethodType):
            return any([self._visit(x.__self__), self._visit(x.__func__)])
        if isinstance(x, partial):
            return any([self._visit(p) for p in (x.func, x.args, x.keywords)])
        if isinstance(x, tuple):
            return any([self._visit(c) for c in x])
        if isinstance(x, list):
            found = any([self._visit(c) for c in x])
            if found or any(isinstance(c, _SCALARS) for c in x):
                self._lists.append((x, list(x)))
            return found
        if isinstance(x, dict):
            return any([self._item(x, k, scalars=True) for k in list(x)])
        return self._object(x)

    def _object(self, x: Any) -> bool:
        wrapped = getattr(type(x), "wraps_function", None)
        if wrapped is not None:
            return self._visit(getattr(x, wrapped))
        if isinstance(x, (type, ModuleType)) or not isinstance(getattr(x, "__dict__", None), dict):
            return False
        if type(x).__module__.partition(".")[0] in _FOREIGN:
            return False
        return any([self._item(vars(x), k, scalars=True) for k in list(vars(x))])

    def _item(self, holder: dict, key: Any, scalars: bool = False) -> bool:
        value = holder[key]
        found = self._visit(value)
        if found or (scalars and isinstance(value, _SCALARS)):
            self._items.append((holder, key, value))
        return found

    def _function(self, f: FunctionType) -> bool:
        if (f.__module__ or "").partition(".")[0] in _FOREIGN:
            return False
        found = False
        for cell in f.__closure__ or ():
            try:
                value = cell.cell_contents
            except ValueError:  # not assigned yet
                continue
            inside = self._visit(value)
            if inside or isinstance(value, _SCALARS):
                self._cells.append((cell, value))
            found |= inside
        for name in sorted(_names(f.__code__)):
            if name in f.__globals__:
                found |= self._item(f.__globals__, name, scalars=True)
        for default in (f.__defaults__, f.__kwdefaults__):
            found |= default is not None and self._visit(default)
        return found


@lru_cache
def _names(code: CodeType) -> frozenset[str]:
    """The global names that a code object, or one inside of it, reads."""
    found = {i.argval for i in get_instructions(code) if i.opname == "LOAD_GLOBAL"}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found |= _names(constant)
    return frozenset(found)
