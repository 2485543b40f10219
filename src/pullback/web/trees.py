"""Arguments and results as a page sees them: trees of objects and lists with arrays as leaves."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from pullback.core import pytrees
from pullback.core.errors import DTypeError
from pullback.ir.array import Array
from pullback.ir.convert import is_numpy

__all__ = ["PageLeaf", "Tree", "arguments_tree", "is_array", "results_tree"]


class PageLeaf(NamedTuple):
    """The array of a number; `path` is how a page reaches it."""

    number: int
    path: str


class Tree(NamedTuple):
    """Dicts, lists, `PageLeaf`s and constants that JSON knows; and the leaves in their order."""

    root: Any
    leaves: list[PageLeaf]


class _TreeWalk:
    """Numbers arrays in the order of a flattened tree."""

    def __init__(self, is_array: Callable[[Any], bool], keeps: bool):
        self.is_array, self.keeps = is_array, keeps
        self.leaves: list[PageLeaf] = []

    def tree(self, structure: pytrees.Structure, values: Iterator[Any], path: str) -> Any:
        if structure is pytrees.LEAF:
            return self.leaf(next(values), path)
        names = pytrees.child_names(structure)
        inside = {}
        for name, child in zip(names, structure.children, strict=True):
            inside[name] = self.tree(child, values, f"{path}.{name}" if path else str(name))
        if names and all(isinstance(n, str) for n in names):
            return inside
        if structure.kind is dict and names:
            bad = next(n for n in names if not isinstance(n, str))
            raise DTypeError(
                f"export_web: keys of dicts are names of a page's objects, got {bad!r}. Use"
                " strings."
            )
        return None if structure.kind is type(None) else list(inside.values())

    def leaf(self, value: Any, path: str) -> Any:
        if self.is_array(value):
            self.leaves.append(PageLeaf(len(self.leaves), path))
            return self.leaves[-1]
        plain = value is None or isinstance(value, (bool, int, float, str))
        return value if self.keeps and plain else None


def is_array(value: Any) -> bool:
    """Whether `jit` takes an argument as an array."""
    return isinstance(value, Array) or is_numpy(value)


def arguments_tree(function: Callable[..., Any], args: Sequence[Any], kwargs: dict) -> Tree:
    """The arguments by their names, in the order in which `jit` takes their arrays."""
    walk = _TreeWalk(is_array, keeps=False)
    names, rest = _names(function, len(args))
    found: dict[str, Any] = {}
    for k, arg in enumerate(args):
        path = names[k] if k < len(names) else f"{rest}.{k - len(names)}"
        leaves, structure = pytrees.flatten(arg)
        tree = walk.tree(structure, iter(leaves), path)
        if k < len(names):
            found[path] = tree
        else:
            found.setdefault(rest, []).append(tree)
    for name, arg in kwargs.items():
        leaves, structure = pytrees.flatten(arg)
        found[name] = walk.tree(structure, iter(leaves), name)
    return Tree({k: v for k, v in found.items() if _holds_arrays(v)}, walk.leaves)


def _names(function: Callable[..., Any], count: int) -> tuple[list[str], str]:
    """The names of parameters that take one positional argument each, and of the one that takes
    all others.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return [f"arg{k}" for k in range(count)], "rest"
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), "rest")
    return [p.name for p in parameters if p.kind in kinds], rest


def _holds_arrays(tree: Any) -> bool:
    if isinstance(tree, (dict, list)):
        return any(map(_holds_arrays, tree.values() if isinstance(tree, dict) else tree))
    return isinstance(tree, PageLeaf)


def results_tree(results: Any) -> Tree:
    """What a function returns, with constants as they are."""
    leaves, structure = pytrees.flatten(results)
    walk = _TreeWalk(lambda x: isinstance(x, Array), keeps=True)
    return Tree(walk.tree(structure, iter(leaves), ""), walk.leaves)
