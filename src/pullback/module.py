"""`Module`: a class whose attributes are its parameters and sub-modules, and which is a tree."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import prod
from typing import Any, ClassVar, NamedTuple

import numpy as np

from pullback.core import pytrees
from pullback.core.errors import GradientError
from pullback.display.notebook import Outline, outline_html
from pullback.ir.array import Array
from pullback.ir.op import another
from pullback.missing_names import MODULE_HINTS, missing

__all__ = ["Module"]

FROZEN = "_frozen"  # the attribute that keeps the paths that `freeze` was given


class Module:
    """A model, or a part of one. Arrays among its attributes are its parameters.

    Attributes may be arrays, modules, and containers of them; whatever else they hold (numbers,
    functions, strings) belongs to the structure, as the class itself does. A module is a tree like
    a dict of its arrays, so `grad`, `jit`, `vmap` and the optimisers take it as it is:
    `pb.grad(loss)(model, x)` is a module that holds gradients.

    A class names in `buffers` those attributes that are no parameters, such as running statistics.

    >>> class Line(pb.Module):
    ...     def __init__(self):
    ...         self.slope = pb.tensor(2.0)
    ...         self.offset = pb.tensor(1.0)
    ...     def __call__(self, x):
    ...         return self.slope * x + self.offset
    >>> pb.grad(lambda line: line(pb.tensor(3.0)) ** 2)(Line()).slope
    tensor(42., float32, cpu)
    """

    buffers: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        pytrees.register_pytree(cls, _flatten, _rebuilder(cls), names=_names, fixed=_fixed)

    def __getattr__(self, name: str) -> Any:
        raise missing(type(self).__name__, name, MODULE_HINTS, [*dir(type(self)), *vars(self)])

    # -- parameters --------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """All arrays by name, as `pb.save` writes them, each with a handle of its own."""
        leaves, structure = pytrees.flatten(self)
        return {n: another(x) for n, x in zip(pytrees.leaf_names(structure), leaves, strict=True)}

    def named_parameters(self) -> dict[str, Any]:
        """The arrays that training changes, by name: the module's own handles."""
        leaves, structure = pytrees.flatten(self)
        fixed = pytrees.fixed_leaves(structure)
        rows = zip(pytrees.leaf_names(structure), leaves, fixed, strict=True)
        return {name: x for name, x, is_fixed in rows if not is_fixed}

    def parameters(self) -> list[Any]:
        """The arrays that training changes: the module's own handles."""
        return list(self.named_parameters().values())

    def freeze(self, *paths: str) -> Any:
        """A copy in which the arrays under `paths` (all, without any) are no longer trained.

        A path is an attribute, or several joined by dots: `model.freeze("encoder.layers.0")`.
        """
        return self._with_frozen(frozenset(paths or ("",)) | self._frozen_paths(), paths)

    def unfreeze(self) -> Any:
        """A copy without what `freeze` marked in this module (not in its parts)."""
        return self._with_frozen(frozenset(), ())

    def _frozen_paths(self) -> frozenset[str]:
        return vars(self).get(FROZEN, frozenset())

    def _with_frozen(self, frozen: frozenset[str], paths: Iterable[str]) -> Any:
        leaves, structure = pytrees.flatten(self)
        names = pytrees.leaf_names(structure)
        for path in paths:
            if not any(_is_under(name, path) for name in names):
                raise GradientError(
                    f"freeze: there are no arrays under {path!r}. The names begin with"
                    f" {', '.join(sorted({n.split('.')[0] for n in names}))}."
                )
        copy = pytrees.unflatten(structure, [another(x) for x in leaves])
        vars(copy)[FROZEN] = frozen
        return copy

    # -- display -----------------------------------------------------------------------------------

    def summary(self) -> str:
        """A table of the arrays: name, shape, dtype and number of elements; the sums at the end.

        >>> print(pb.nn.Linear(3, 2, key=pb.random.key(0)).summary())
        name    shape   dtype    elements
        weight  (2, 3)  float32         6
        bias    (2,)    float32         2
        8 parameters, 32 bytes
        """
        leaves, structure = pytrees.flatten(self)
        fixed = pytrees.fixed_leaves(structure)
        rows = [("name", "shape", "dtype", "elements")]
        for name, x, still in zip(pytrees.leaf_names(structure), leaves, fixed, strict=True):
            count = f"{prod(x.shape):,}" + (" fixed" if still else "")
            rows.append((name, str(x.shape), x.dtype.name, count))
        widths = [max(len(row[i]) for row in rows) for i in range(4)]
        lines = [
            f"{n:<{widths[0]}}  {s:<{widths[1]}}  {d:<{widths[2]}}  {c:>{widths[3]}}"
            for n, s, d, c in rows
        ]
        trained = sum(x.size for x, still in zip(leaves, fixed, strict=True) if not still)
        rest = sum(x.size for x in leaves) - trained
        counts = f"{trained:,} parameters" + (f" and {rest:,} fixed elements" if rest else "")
        return "\n".join([*lines, f"{counts}, {sum(x.nbytes for x in leaves):,} bytes"])

    def __repr__(self) -> str:
        """The module with its parts, one a line; arrays by shape and dtype."""
        name, inside = type(self).__name__, [f"  {x}" for x in _described(_attributes(self))]
        return "\n".join([f"{name}(", *inside, ")"]) if inside else f"{name}()"

    def _repr_html_(self) -> str:
        """What a notebook shows: the parts, which open and close, with their numbers."""
        return outline_html(_outline("", self))


def _outline(name: str, module: Module) -> Outline:
    """A module as an outline: its arrays and parts; other attributes stand beside its name."""
    parts: list[Outline] = []
    options: list[str] = []
    for key, value in _attributes(module):
        inner = [(key, value)]
        if isinstance(value, (list, tuple)) and any(isinstance(v, (Array, Module)) for v in value):
            inner = [(f"{key}[{i}]", v) for i, v in enumerate(value)]
        for own, v in inner:
            if isinstance(v, Module):
                parts.append(_outline(own, v))
            elif isinstance(v, Array):
                parts.append(Outline(own, _short(v), ""))
            else:
                options.append(f"{own}={_short(v)}")
    count = sum(x.size for x in module.parameters())
    facts = ", ".join([*([f"{count:,} parameters"] if count else []), *options])
    return Outline(name, type(module).__name__, facts, parts)


def _described(attributes: Iterator[tuple[str, Any]]) -> Iterator[str]:
    for name, value in attributes:
        first, *rest = _short(value).split("\n")
        yield f"{name}={first}"
        yield from rest


def _short(value: Any) -> str:
    if isinstance(value, Array):
        av = value._aval
        return f"{av.dtype.name}{list(av.shape)}"
    if isinstance(value, (list, tuple)) and any(isinstance(v, (Array, Module)) for v in value):
        parts = "\n".join(f"  {i}: {_short(v)}".replace("\n", "\n  ") for i, v in enumerate(value))
        return f"[\n{parts}\n]"
    if callable(value) and not isinstance(value, Module):
        return getattr(value, "__name__", repr(value))
    return repr(value)


# -- a module as a tree ----------------------------------------------------------------------------


def _is_array(value: Any) -> bool:
    return isinstance(value, (Array, np.ndarray))


class _Skeleton:
    """A module without its arrays: equal to another where everything else is equal."""

    __slots__ = ("attributes", "buffers", "frozen")

    def __init__(self, module: Module, attributes: tuple):
        self.attributes = attributes  # (name, structure, a static value or a place for each leaf)
        self.buffers = module.buffers
        self.frozen = module._frozen_paths()

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _Skeleton)
            and self.attributes == other.attributes
            and self.frozen == other.frozen
        )

    __hash__ = None  # type: ignore[assignment]


class _Place(NamedTuple):
    """Stands for an array in a skeleton: its position among the module's arrays.

    A handle that stands in two places is one parameter, and has one position.
    """

    position: int


def _flatten(module: Module) -> tuple[list, _Skeleton]:
    arrays: dict[int, Any] = {}  # by the identity of the handle
    positions: dict[int, _Place] = {}
    attributes = []
    for name, value in _attributes(module):
        leaves, structure = pytrees.flatten(value)
        for x in leaves:
            if _is_array(x) and id(x) not in arrays:
                positions[id(x)] = _Place(len(arrays))
                arrays[id(x)] = x
        attributes.append((name, structure, [positions.get(id(x), x) for x in leaves]))
    return list(arrays.values()), _Skeleton(module, tuple(attributes))


def _attributes(module: Module) -> Iterator[tuple[str, Any]]:
    return ((name, value) for name, value in vars(module).items() if name != FROZEN)


def _rebuilder(cls: type[Module]) -> Any:
    def unflatten(skeleton: _Skeleton, arrays: list) -> Any:
        module = object.__new__(cls)
        for name, structure, leaves in skeleton.attributes:
            filled = [arrays[x.position] if type(x) is _Place else x for x in leaves]
            vars(module)[name] = pytrees.unflatten(structure, filled)
        if skeleton.frozen:
            vars(module)[FROZEN] = skeleton.frozen
        return module

    return unflatten


def _places(skeleton: _Skeleton) -> Iterator[tuple[str, bool]]:
    """The path of each array, as `_flatten` orders them, and whether it is fixed."""
    count = 0
    for name, structure, leaves in skeleton.attributes:
        paths, flags = pytrees.leaf_names(structure), pytrees.fixed_leaves(structure)
        for x, inside, fixed in zip(leaves, paths, flags, strict=True):
            if type(x) is not _Place or x.position < count:
                continue
            count += 1
            path = f"{name}.{inside}" if inside else name
            is_frozen = any(_is_under(path, f) for f in skeleton.frozen)
            yield path, fixed or name in skeleton.buffers or is_frozen


def _names(skeleton: _Skeleton) -> list[str]:
    return [path for path, _ in _places(skeleton)]


def _fixed(skeleton: _Skeleton) -> list[bool]:
    return [fixed for _, fixed in _places(skeleton)]


def _is_under(name: str, path: str) -> bool:
    return not path or name == path or name.startswith(f"{path}.")
