"""Containers: nested tuples, lists, dicts, named tuples, dataclasses and registered types as trees
of leaves.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

__all__ = ["flatten", "leaves", "map_tree", "paths", "register_pytree", "unflatten"]

_registered: dict[type, tuple[Callable[[Any], tuple[list, Any]], Callable[[Any, list], Any]]] = {}


class Structure:
    """What a tree looks like without its leaves; equal structures compare equal."""

    __slots__ = ("children", "info", "kind")

    def __init__(self, kind: object, info: object, children: tuple[Structure, ...]):
        self.kind = kind
        self.info = info
        self.children = children

    @property
    def leaves(self) -> int:
        """The number of leaves."""
        return 1 if self is LEAF else sum(c.leaves for c in self.children)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Structure)
            and self.kind is other.kind
            and self.info == other.info
            and self.children == other.children
        )

    def __hash__(self) -> int:
        return hash((self.kind, self.children))

    def __repr__(self) -> str:
        if self.kind is None:
            return "*"
        name = getattr(self.kind, "__name__", str(self.kind))
        return f"{name}({', '.join(map(repr, self.children))})"


LEAF = Structure(None, None, ())


def register_pytree(
    cls: type,
    flatten: Callable[[Any], tuple[list, Any]],
    unflatten: Callable[[Any, list], Any],
) -> None:
    """Let `cls` be a container: `flatten(obj) -> (children, info)`, `unflatten(info, children) ->
    obj`.
    """
    _registered[cls] = (flatten, unflatten)


def _children(tree: Any) -> tuple[list, Any] | None:
    """The children of a container and what is needed to rebuild it, or None for a leaf."""
    cls = type(tree)
    if cls in _registered:
        return _registered[cls][0](tree)
    if cls is list or cls is tuple:
        return list(tree), len(tree)
    if cls is dict:
        keys = tuple(tree)
        return [tree[k] for k in keys], keys
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return list(tree), len(tree)
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        names = tuple(f.name for f in dataclasses.fields(tree))
        return [getattr(tree, n) for n in names], names
    if tree is None:
        return [], None
    return None


def flatten(tree: Any) -> tuple[list, Structure]:
    """The leaves of a tree, left to right, and its structure. None is a tree without leaves."""
    found: list = []
    return found, _walk(tree, found)


def _walk(tree: Any, found: list) -> Structure:
    parts = _children(tree)
    if parts is None:
        found.append(tree)
        return LEAF
    children, info = parts
    return Structure(type(tree), info, tuple([_walk(c, found) for c in children]))


def unflatten(structure: Structure, values: Sequence) -> Any:
    """The tree with the given structure and leaves."""
    return _build(structure, iter(values))


def _build(s: Structure, rest: Iterator[Any]) -> Any:
    if s is LEAF:
        return next(rest)
    children = [_build(c, rest) for c in s.children]
    kind: Any = s.kind
    if kind in _registered:
        return _registered[kind][1](s.info, children)
    if kind is dict:
        return dict(zip(s.info, children, strict=True))  # type: ignore[call-overload]
    if kind is type(None):
        return None
    if kind is list or kind is tuple:
        return kind(children)
    return kind(*children)


def paths(structure: Structure, path: str) -> Iterator[str]:
    """The way to each leaf, as Python would write it after `path`."""
    if structure is LEAF:
        yield path
        return
    kind: Any = structure.kind
    names: Sequence[Any] = structure.info if isinstance(structure.info, tuple) else ()
    fields = getattr(kind, "_fields", names)
    for i, child in enumerate(structure.children):
        if kind is dict:
            step = f"[{names[i]!r}]"
        elif kind in (list, tuple) or i >= len(fields):
            step = f"[{i}]"
        else:
            step = f".{fields[i]}"
        yield from paths(child, path + step)


def leaves(tree: Any) -> list:
    """The leaves of a tree, left to right."""
    return flatten(tree)[0]


def map_tree(f: Callable, tree: Any, *rest: Any) -> Any:
    """Apply `f` to the leaves of trees of one structure.

    >>> from pullback.core.pytrees import map_tree
    >>> map_tree(lambda a, b: a + b, {"w": 1, "b": (2, 3)}, {"w": 10, "b": (20, 30)})
    {'w': 11, 'b': (22, 33)}
    """
    values, structure = flatten(tree)
    others = []
    for other in rest:
        more, shape = flatten(other)
        if shape != structure:
            raise ValueError(
                f"map_tree: the trees differ in structure, got {structure} and {shape}."
            )
        others.append(more)
    return unflatten(structure, [f(*vs) for vs in zip(values, *others, strict=True)])
