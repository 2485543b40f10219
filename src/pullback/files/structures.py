"""What a tree looks like, as JSON: containers, numbers and strings, and the names of its arrays.

Each node is null, or an object with one key that says what it is. Numbers that are no arrays are
text, so that every bit of them is kept.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from pullback.core import pytrees
from pullback.core.errors import DTypeError, FileFormatError, TraceError
from pullback.ir.array import Array
from pullback.ir.convert import as_array, to_numpy

__all__ = ["KEY", "contents", "described", "leaf_values", "rebuilt", "unique_names"]

KEY = "pullback"  # of the metadata


def unique_names(tree: Any) -> list[str]:
    """A name for each leaf: its path, numbered where two paths read alike."""
    taken: set[str] = set()
    names = []
    for path in pytrees.leaf_names(pytrees.flatten(tree)[1]):
        name, again = path or "value", 1
        while name in taken:
            again += 1
            name = f"{path}#{again}"
        taken.add(name)
        names.append(name)
    return names


def described(tree: Any) -> tuple[dict[str, np.ndarray], str]:
    """The arrays of a tree by name, as the format holds them, and its structure as JSON."""
    stored: dict[str, np.ndarray] = {}
    node = _described(tree, iter(unique_names(tree)), stored)
    return stored, json.dumps(node, separators=(",", ":"), ensure_ascii=False)


def _described(tree: Any, names: Iterator[str], stored: dict[str, np.ndarray]) -> Any:
    if tree is None:
        return None
    cls = type(tree)
    if cls is dict:
        for key in tree:
            if type(key) not in (str, int, bool):
                raise DTypeError(f"save: keys of dicts must be strings or integers, got {key!r}.")
        return {"dict": [[k, _described(v, names, stored)] for k, v in tree.items()]}
    if cls is list or cls is tuple:
        return {cls.__name__: [_described(v, names, stored) for v in tree]}
    children = pytrees.children(tree)
    if children is not None:
        inside = [_described(v, names, stored) for v in children]
        return {"class": [f"{cls.__module__}.{cls.__qualname__}", inside]}
    return _leaf(tree, next(names), stored)


def _leaf(value: Any, name: str, stored: dict[str, np.ndarray]) -> Any:
    cls = type(value)
    if isinstance(value, (Array, np.ndarray, np.generic)):
        array = contents(name, value)
        is_complex = array.dtype.kind == "c"
        stored[name] = _as_pairs(array) if is_complex else array
        return {"complex_array" if is_complex else "array": name}
    if cls in _TEXTS:
        return {cls.__name__: [name, _TEXTS[cls](value)]}
    raise DTypeError(f"save: {name!r} must be an array, a number or a string, got {cls.__name__}.")


def contents(name: str, value: Any) -> np.ndarray:
    x = as_array(value, "save")
    if x._aval.is_symbolic:
        raise TraceError(f"save: {name!r} is traced and has no contents. Save it outside of jit.")
    return np.ascontiguousarray(to_numpy(x)).reshape(x._aval.shape)


def _as_pairs(array: np.ndarray) -> np.ndarray:
    """Complex numbers as pairs along a last axis: the format has no complex128."""
    return array.reshape(*array.shape, 1).view(np.finfo(array.dtype).dtype)


def _from_pairs(name: str, array: np.ndarray) -> np.ndarray:
    if array.dtype not in (np.float32, np.float64) or array.ndim == 0 or array.shape[-1] != 2:
        raise FileFormatError(f"describes {name!r} as complex, but holds no pairs of floats.")
    dtype = np.result_type(array.dtype, np.complex64)
    return np.ascontiguousarray(array).view(dtype).reshape(array.shape[:-1])


# How numbers and strings are written down, and read again: with every bit.
_TEXTS: dict[type, Callable[[Any], Any]] = {
    bool: bool,
    str: str,
    int: hex,
    float: float.hex,
    complex: lambda v: [v.real.hex(), v.imag.hex()],
}
_VALUES: dict[str, Callable[[Any], Any]] = {
    "bool": lambda v: _of(bool, v),
    "str": lambda v: _of(str, v),
    "int": lambda v: int(_of(str, v), 16),
    "float": lambda v: float.fromhex(_of(str, v)),
    "complex": lambda v: complex(*(float.fromhex(_of(str, part)) for part in _pair(v))),
}


def _of(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise ValueError(f"expected {kind.__name__}, got {value!r}")
    return value


def _pair(value: Any) -> list:
    if type(value) is not list or len(value) != 2:
        raise ValueError(f"expected two values, got {value!r}")
    return value


def rebuilt(text: str, arrays: Mapping[str, np.ndarray], tensor: Callable[..., Any]) -> Any:
    """The tree that a text of `described` describes; `tensor` makes our array of the file's."""
    taken: set[str] = set()  # each array stands in one place: a small file makes no large tree

    def build(node: Any) -> Any:
        kind, value = _opened(node)
        if kind == "none":
            return None
        if kind == "dict":
            return {key: build(child) for key, child in map(_pair, value)}
        if kind == "list":
            return [build(child) for child in value]
        if kind == "tuple":
            return tuple([build(child) for child in value])
        if kind == "class":
            raise FileFormatError(
                f"holds an object of {_pair(value)[0]}, which a file can't make."
                " Give an object of that class as like=..."
            )
        name, found = _leaf_value(kind, value, arrays)
        if not isinstance(found, np.ndarray):
            return found
        if name in taken:
            raise FileFormatError(f"describes the array {name!r} twice.")
        taken.add(name)
        return tensor(found)

    return _read(text, build)


def leaf_values(text: str, arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """The leaves that a text of `described` describes, by name: arrays, numbers and strings."""
    found: dict[str, Any] = {}

    def visit(node: Any) -> None:
        kind, value = _opened(node)
        if kind == "dict":
            value = [child for _, child in map(_pair, value)]
        elif kind == "class":
            value = _of(list, _pair(value)[1])
        if kind in ("dict", "list", "tuple", "class"):
            for child in value:
                visit(child)
        elif kind != "none":
            name, leaf = _leaf_value(kind, value, arrays)
            found[name] = leaf

    _read(text, visit)
    return found


def _read(text: str, reader: Callable[[Any], Any]) -> Any:
    try:
        return reader(json.loads(text))
    except FileFormatError:
        raise
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise FileFormatError(f"describes a tree that can't be read: {error}.") from None


def _opened(node: Any) -> tuple[str, Any]:
    """What a node is, and what stands in it."""
    if node is None:
        return "none", None
    if type(node) is not dict or len(node) != 1:
        raise ValueError(f"expected one node, got {node!r}")
    ((kind, value),) = node.items()
    if kind in ("dict", "list", "tuple"):
        _of(list, value)
    return kind, value


def _leaf_value(kind: str, value: Any, arrays: Mapping[str, np.ndarray]) -> tuple[str, Any]:
    """The name of a leaf and what it is."""
    if kind in ("array", "complex_array"):
        name = _of(str, value)
        if name not in arrays:
            raise FileFormatError(f"describes an array {name!r} that it does not hold.")
        return name, _from_pairs(name, arrays[name]) if kind == "complex_array" else arrays[name]
    if kind not in _VALUES:
        raise ValueError(f"no node is called {kind!r}")
    name, told = _pair(value)
    return _of(str, name), _VALUES[kind](told)
