"""Functions that are called when a gradient is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pullback.ir.array import Node

__all__ = ["Hook", "registered"]


class Hook:
    """A registered hook; `remove()` takes it away."""

    def __init__(self, hooks: dict[int, Callable], key: int):
        self._hooks = hooks
        self._key = key

    def remove(self) -> None:
        self._hooks.pop(self._key, None)


def registered(node: Node, hook: Callable[[Any], Any]) -> Hook:
    """The hook, which `autodiff.reverse` finds at the node."""
    if node.extra is None:
        node.extra = {}
    hooks = node.extra.setdefault("hooks", {})
    key = max(hooks, default=-1) + 1
    hooks[key] = hook
    return Hook(hooks, key)
