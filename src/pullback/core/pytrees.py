"""Containers: nested tuples, lists, dicts, named tuples, dataclasses and registered types as trees
of leaves.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

__all__ = [
    "Parameters",
    "children",
    "fixed_leaves",
    "flatten",
    "leaf_names",
    "leaves",
    "map_tree",
    "register_pytree",
    "unflatten",
]


class Kind(NamedTuple):
    """How a registered class is taken apart and built again."""

    flatten: Callable[[Any], tuple[list, Any]]
    unflatten: Callable[[Any, list], Any]
    names: Callable[[Any], Sequence[str]] | None
    fixed: Callable[[Any], Sequence[bool]] | None


_registered: dict[type, Kind] = {}


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
    *,
    names: Callable[[Any], Sequence[str]] | None = None,
    fixed: Callable[[Any], Sequence[bool]] | None = None,
) -> None:
    """Let `cls` be a container: `flatten(obj) -> (children, info)`, `unflatten(info, children) ->
    obj`.

    `names(obj)` says what the children are called, else they are counted. `fixed(obj)` says which
    children are data rather than parameters: gradients by them are zero and optimisers leave them.
    """
    _registered[cls] = Kind(flatten, unflatten, names, fixed)


def _children(tree: Any) -> tuple[list, Any] | None:
    """The children of a container and what is needed to rebuild it, or None for a leaf."""
    cls = type(tree)
    if cls in _registered:
        return _registered[cls].flatten(tree)
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


def children(tree: Any) -> list | None:
    """What a container holds, in order, or None for a leaf."""
    parts = _children(tree)
    return None if parts is None else parts[0]


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
        return _registered[kind].unflatten(s.info, children)
    if kind is dict:
        return dict(zip(s.info, children, strict=True))  # type: ignore[call-overload]
    if kind is type(None):
        return None
    if kind is list or kind is tuple:
        return kind(children)
    return kind(*children)


def leaves(tree: Any) -> list:
    """The leaves of a tree, left to right."""
    return flatten(tree)[0]


def leaf_names(tree: Any) -> list[str]:
    """The path of each leaf, left to right: keys, positions and field names joined by dots.

    >>> from pullback.core.pytrees import leaf_names
    >>> leaf_names({"layers": [{"w": 1, "b": 2}], "scale": 3})
    ['layers.0.w', 'layers.0.b', 'scale']
    """
    found: list[str] = []
    pending: list[tuple[Any, str]] = [(tree, "")]
    while pending:
        node, path = pending.pop()
        parts = _children(node)
        if parts is None:
            found.append(path)
            continue
        inside = parts[0]
        start = f"{path}." if path else ""
        keys = [f"{start}{k}" for k in _child_names(node, len(inside))]
        pending.extend(reversed(list(zip(inside, keys, strict=True))))
    return found


def _child_names(node: Any, count: int) -> Sequence[Any]:
    """What the children of a container are called: keys, field names, or else positions."""
    kind = _registered.get(type(node))
    if kind is not None:
        return kind.names(node) if kind.names is not None else range(count)
    if type(node) is dict:
        return tuple(node)
    if isinstance(node, tuple) and hasattr(node, "_fields"):
        return node._fields
    if dataclasses.is_dataclass(node):
        return [f.name for f in dataclasses.fields(node)]
    return range(count)


def fixed_leaves(tree: Any) -> list[bool]:
    """For each leaf, left to right, whether a container around it says that it is fixed."""
    found: list[bool] = []
    pending: list[tuple[Any, bool]] = [(tree, False)]
    while pending:
        node, inherited = pending.pop()
        parts = _children(node)
        if parts is None:
            found.append(inherited)
            continue
        inside = parts[0]
        kind = _registered.get(type(node))
        own = kind.fixed(node) if kind is not None and kind.fixed is not None else None
        flags = [inherited or (own is not None and own[i]) for i in range(len(inside))]
        pending.extend(reversed(list(zip(inside, flags, strict=True))))
    return found


class Parameters:
    """The leaves of a tree that no container calls fixed, and how others take their places."""

    def __init__(self, tree: Any):
        self._all, self.structure = flatten(tree)
        self._fixed = fixed_leaves(tree)
        self.leaves = self._chosen(self._all)

    def _chosen(self, values: Sequence[Any]) -> list[Any]:
        return [v for v, fixed in zip(values, self._fixed, strict=True) if not fixed]

    def of(self, other: Any) -> list[Any]:
        """The leaves at the same places of another tree of this structure."""
        return self._chosen(leaves(other))

    def replaced(self, values: Sequence[Any], rest: Callable[[Any], Any] | None = None) -> Any:
        """The tree with `values` in place of the parameters, and `rest` of each fixed leaf, or the
        leaf as it is.
        """
        new = iter(values)
        pairs = zip(self._all, self._fixed, strict=True)
        kept = rest or (lambda x: x)
        return unflatten(self.structure, [kept(x) if fixed else next(new) for x, fixed in pairs])

    def mapped(self, f: Callable, *others: Any) -> Any:
        """The tree with `f` applied to the parameters of this and of other trees like it."""
        rows = zip(self.leaves, *[self.of(other) for other in others], strict=True)
        return self.replaced([f(*row) for row in rows])


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
