"""The methods of tensors that are operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pullback.core.errors import DTypeError, ShapeError, briefly
from pullback.foreign_names import METHODS
from pullback.ir.op import Public

__all__ = ["install_methods"]


def _reflected(function: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Any, other: Any, /) -> Any:
        return function(other, self)

    return method


def _in_place(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @briefly
    def method(self: Any, other: Any, /) -> Any:
        new = function(self, other)
        if new is NotImplemented:
            return new
        if new.shape != self.shape:
            raise ShapeError(
                f"{name}: the result has shape {new.shape}, which does not fit {self.shape} in"
                " place."
            )
        if new.dtype is not self.dtype:
            raise DTypeError(
                f"{name}: the result has dtype {new.dtype.name}, which does not fit"
                f" {self.dtype.name} in place."
            )
        self._rebind(name, new)
        return self

    return method


def install_methods(cls: type, entries: Mapping[str, Public]) -> None:
    """Give the class of tensors the methods that operations declare: operators with their reflected
    and in-place forms, and names; and those that other libraries' arrays have.
    """
    for name, others in METHODS.items():
        entries[name].methods = (*entries[name].methods, *others.split())
    for entry in entries.values():
        function = entry.function
        operator = getattr(function, "operator", function)
        for name in entry.methods:
            if name.startswith("__r") and name != "__rshift__":
                setattr(cls, name, _reflected(operator))
            elif name.startswith("__"):
                setattr(cls, name, operator)
                if f"__r{name[2:]}" in entry.methods:
                    in_place = f"__i{name[2:]}"
                    setattr(cls, in_place, _in_place(in_place, operator))
            else:
                setattr(cls, name, function)
