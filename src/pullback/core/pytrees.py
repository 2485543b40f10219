"""Containers: nested tuples, lists, dicts of some kinds, named tuples, dataclasses and registered
types as trees of leaves.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from pullback.core.errors import ShapeError, expect_function

__all__ = [
    "Parameters",
    "Structure",
    "child_names",
    "children",
    "difference",
    "fixed_leaves",
    "flatten",
    "leaf_names",
    "leaves",
    "map_tree",
    "paths",
    "register_pytree",
    "unflatten",
]


class ContainerKind(NamedTuple):
    """How a registered class is taken apart and built again."""

    flatten: Callable[[Any], tuple[list, Any]]
    unflatten: Callable[[Any, list], Any]
    names: Callable[[Any], Sequence[str]] | None  # of `info`
    fixed: Callable[[Any], Sequence[bool]] | None  # of `info`


_registered: dict[type, ContainerKind] = {}
_plain: set[type] = set()  # classes whose objects were found to be leaves
MOST_PLAIN = 256  # so that classes which a program makes on the way can die


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
    *,
    names: Callable[[Any], Sequence[str]] | None = None,
    fixed: Callable[[Any], Sequence[bool]] | None = None,
) -> None:
    """Let `cls` be a container: `flatten(obj) -> (children, info)`, `unflatten(info, children) ->
    obj`.

    `names(info)` says what the children are called, else they are counted. `fixed(info)` says which
    children are data rather than parameters: gradients by them are zero and optimisers leave them.
    """
    _registered[cls] = ContainerKind(flatten, unflatten, names, fixed)
    _plain.discard(cls)


register_pytree(
    OrderedDict,
    lambda tree: (list(tree.values()), tuple(tree)),
    lambda keys, values: OrderedDict(zip(keys, values, strict=True)),
    names=lambda keys: keys,
)
register_pytree(
    defaultdict,
    lambda tree: (list(tree.values()), (tree.default_factory, tuple(tree))),
    lambda info, values: defaultdict(info[0], zip(info[1], values, strict=True)),
    names=lambda info: info[1],
)


def _children(tree: Any) -> tuple[list, Any] | None:
    """The children of a container and what is needed to rebuild it, or None for a leaf."""
    cls = type(tree)
    if cls in _plain:
        return None
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
    if len(_plain) >= MOST_PLAIN:
        _plain.clear()
    _plain.add(cls)
    return None


def children(tree: Any) -> list | None:
    """What a container holds, in order, or None for a leaf."""
    parts = _children(tree)
    return None if parts is None else parts[0]


def flatten(tree: Any) -> tuple[list, Structure]:
    """The leaves of a tree, left to right, and its structure. None is a tree without leaves."""
    found: list = []
    try:
        return found, _walk(tree, found)
    except RecursionError:
        raise too_deep() from None


def too_deep() -> ShapeError:
    """The error for a container that is nested deeper than Python's functions can be."""
    return ShapeError("container: it is nested too deeply to be walked. Does it contain itself?")


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
    return _dataclass(kind, children) if dataclasses.is_dataclass(kind) else kind(*children)


def _dataclass(kind: Any, values: list) -> Any:
    """An object with these values of its fields, of those too that `__init__` does not take."""
    given = list(zip(dataclasses.fields(kind), values, strict=True))
    named = {f.name: v for f, v in given if f.init and f.kw_only}
    made = kind(*[v for f, v in given if f.init and not f.kw_only], **named)
    for f, v in given:
        if not f.init:
            object.__setattr__(made, f.name, v)  # which frozen ones do as well
    return made


def paths(structure: Structure, root: str) -> Iterator[str]:
    """The way to each leaf from a tree called `root`, as Python would write it."""
    if structure is LEAF:
        yield root
    for step, child in zip(_steps(structure), structure.children, strict=True):
        yield from paths(child, root + step)


def _steps(s: Structure) -> list[str]:
    """The way to each child of a container."""
    if isinstance(s.kind, type) and issubclass(s.kind, dict):
        return [f"[{key!r}]" for key in child_names(s)]
    return [f".{key}" if isinstance(key, str) else f"[{key}]" for key in child_names(s)]


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


def leaf_names(structure: Structure) -> list[str]:
    """The path of each leaf, left to right: keys, positions and field names joined by dots.

    >>> from pullback.core.pytrees import flatten, leaf_names
    >>> leaf_names(flatten({"layers": [{"w": 1, "b": 2}], "scale": 3})[1])
    ['layers.0.w', 'layers.0.b', 'scale']
    """
    found: list[str] = []
    pending = [(structure, "")]
    while pending:
        s, path = pending.pop()
        if s is LEAF:
            found.append(path)
        start = f"{path}." if path else ""
        inside = zip(s.children, [f"{start}{key}" for key in child_names(s)], strict=True)
        pending.extend(reversed(list(inside)))
    return found


def child_names(s: Structure) -> Sequence[Any]:
    """What the children of a container are called: keys, field names, or else positions."""
    kind: Any = s.kind
    if kind in _registered:
        names = _registered[kind].names
        return range(len(s.children)) if names is None else names(s.info)
    if kind is dict or dataclasses.is_dataclass(kind):
        return s.info  # type: ignore[return-value]
    return getattr(kind, "_fields", range(len(s.children)))


def fixed_leaves(structure: Structure) -> list[bool]:
    """For each leaf, left to right, whether a container around it says that it is fixed."""
    found: list[bool] = []
    _mark_fixed(structure, False, found)
    return found


def _mark_fixed(s: Structure, inherited: bool, found: list[bool]) -> None:
    if s is LEAF:
        found.append(inherited)
        return
    kind = _registered.get(s.kind)  # type: ignore[arg-type]
    own = kind.fixed(s.info) if kind is not None and kind.fixed is not None else ()
    for i, child in enumerate(s.children):
        _mark_fixed(child, inherited or bool(own and own[i]), found)


class Parameters:
    """The leaves of a tree that no container calls fixed, and how others take their places."""

    def __init__(self, tree: Any):
        self._all, self.structure = flatten(tree)
        self._fixed = fixed_leaves(self.structure)
        self.leaves = self._chosen(self._all)

    def _chosen(self, values: Sequence[Any]) -> list[Any]:
        return [v for v, fixed in zip(values, self._fixed, strict=True) if not fixed]

    def of(self, other: Any) -> list[Any]:
        """The leaves at the same places of another tree of this structure."""
        return self._chosen(leaves(other))

    def paths(self, root: str) -> list[str]:
        """The way to each parameter from a tree called `root`, as Python would write it."""
        return self._chosen(list(paths(self.structure, root)))

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
    expect_function("map_tree", f)
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
