"""Containers: nested tuples, lists, dicts, named tuples, dataclasses and registered types as trees
of leaves.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pullback.core.errors import ShapeError

__all__ = [
    "Structure",
    "difference",
    "flatten",
    "leaves",
    "map_tree",
    "paths",
    "register_pytree",
    "unflatten",
]

_registered: dict[type, tuple[Callable[[Any], tuple[list, Any]], Callable[[Any, list], Any]]] = {}


class Structure:
    """What a tree looks like without its leaves; equal structures compare equal."""

    __slots__ = ("children", "info", "kind")

    def __init__(self, kind: object, info: object, children: tuple[Structure, ...]):
        self.kind = kind
        self.info = info
        self.children = children

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


def paths(structure: Structure, root: str) -> Iterator[str]:
    """The way to each leaf from a tree called `root`, as Python would write it."""
    if structure is LEAF:
        yield root
    for step, child in zip(_steps(structure), structure.children, strict=True):
        yield from paths(child, root + step)


def _steps(s: Structure) -> list[str]:
    """The way to each child of a container."""
    kind: Any = s.kind
    names: Sequence[Any] = s.info if isinstance(s.info, tuple) else ()
    if kind is dict:
        return [f"[{name!r}]" for name in names]
    fields = getattr(kind, "_fields", names) if kind not in (list, tuple) else ()
    own = [f".{fields[i]}" for i in range(min(len(fields), len(s.children)))]
    return own + [f"[{i}]" for i in range(len(own), len(s.children))]


def difference(expected: Structure, found: Structure, root: str) -> str:
    """Where two structures that are not equal differ first, in words."""
    if expected.kind is not found.kind:
        return f"{root} must be {_word(expected)}, got {_word(found)}"
    if expected.kind is dict:
        lacks = [k for k in expected.info if k not in found.info]  # type: ignore[attr-defined]
        surplus = [k for k in found.info if k not in expected.info]  # type: ignore[attr-defined]
        if lacks or surplus:
            said = [f"lacks {_listed(lacks)}"] * bool(lacks)
            said += [f"has {_listed(surplus)} too many"] * bool(surplus)
            return f"{root} {' and '.join(said)}"
        if expected.info != found.info:
            return f"{root} must have its keys in the order {_listed(expected.info)}"
    elif len(expected.children) != len(found.children):
        n, m = len(expected.children), len(found.children)
        return f"{root} must have {n} element{'s' * (n != 1)}, got {m}"
    for step, a, b in zip(_steps(expected), expected.children, found.children, strict=True):
        if a != b:
            return difference(a, b, root + step)
    return f"{root} must be rebuilt from {expected.info!r}, got {found.info!r}"


def _word(s: Structure) -> str:
    if s.kind is None:
        return "an array"
    if s.kind is type(None):
        return "None"
    return f"a {getattr(s.kind, '__name__', s.kind)}"


def _listed(keys: Any) -> str:
    return ", ".join(map(repr, keys))


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
            raise ShapeError(
                "map_tree: the trees must have one structure:"
                f" {difference(structure, shape, 'tree')}."
            )
        others.append(more)
    return unflatten(structure, [f(*vs) for vs in zip(values, *others, strict=True)])
