"""The types of an operation's parameters and results, for the stubs.

They come from annotations where these say something; for the rest from what the samples of an
operation pass and get back.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterable
from typing import Any

import numpy as np

import pullback as pb
from pullback.core import dtypes, pytrees
from pullback.ir.op import Public
from pullback.ir.samples import Draw, Sample

__all__ = ["BUILTINS", "parameter_type", "quoted", "return_type"]

BUILTINS = {
    "bool", "bytearray", "bytes", "complex", "dict", "float", "int", "list", "memoryview", "object",
    "range", "str", "tuple", "type",
}  # fmt: skip
# Parameters whose meaning is the same everywhere; those with a default of None also take None.
BY_NAME = {
    "axis": "int | Sequence[int]",
    "dtype": "_DTypeLike",
    "device": "_DeviceLike",
    "shape": "int | Sequence[int]",
    "where": "_DeviceLike",
}
# Parameters that take one integer for all axes or one for each, whatever the samples pass.
PER_AXIS = {"dilation", "kernel_size", "output_padding", "padding", "stride"}
Parameter = inspect.Parameter


def quoted(doc: str, indent: str) -> list[str]:
    """The first paragraph of a docstring, as the lines of one."""
    first = " ".join(doc.partition("\n\n")[0].split())
    if not first:
        return []
    lines = textwrap.wrap(first, 93 - len(indent), break_on_hyphens=False)
    raw = "r" if "\\" in first else ""
    body = f"\n{indent}".join(lines)
    end = f"\n{indent}" if len(lines) > 1 else ""
    return [f'{indent}{raw}"""{body}{end}"""']


def union(parts: Iterable[str]) -> str:
    """The parts as one annotation, each once, None last, without what another part includes."""
    found = dict.fromkeys(p for part in parts for p in part.split(" | "))
    inside = {"None"}
    if "_ArrayLike" in found:
        inside |= {"bool", "int", "float", "complex"}
    elif "float" in found:
        inside.add("int")
    named = [p for p in found if p not in inside]
    return " | ".join([*named, "None"] if "None" in found else named)


def type_of(value: Any) -> str:
    """The annotation of a parameter that takes such a value."""
    if isinstance(value, np.ndarray):
        return "_ArrayLike"
    if isinstance(value, dtypes.DType):
        return "_DTypeLike"
    if value is None:
        return "None"
    if isinstance(value, (tuple, list)):
        if any(isinstance(v, np.ndarray) for v in value):
            return "Sequence[_ArrayLike]"
        whole = all(type(v) is int for v in value)
        return "int | Sequence[int]" if whole else "Any"
    return type(value).__name__ if type(value).__name__ in BUILTINS else "Any"


def drawn(entry: Public) -> list[Sample]:
    """The samples of an operation, the same ones every time."""
    return entry.samples(Draw(0))


def seen_types(entry: Public, parameter: Parameter) -> list[str]:
    """What the samples pass for a parameter."""
    found = []
    for sample in drawn(entry):
        bound = entry.signature.bind(*sample.args, **sample.kwargs).arguments
        if parameter.name in bound:
            value = bound[parameter.name]
            values = value if parameter.kind is Parameter.VAR_POSITIONAL else [value]
            found += [type_of(v) for v in values]
    return found


def with_tensors(sample: Sample) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a sample, its arrays as tensors."""
    return pytrees.map_tree(
        lambda a: pb.tensor(a) if isinstance(a, np.ndarray) else a, (sample.args, sample.kwargs)
    )


def takes_plan(entry: Public, parameter: Parameter) -> bool:
    """Whether a `scatter_plan` can stand for an index array that the samples pass."""
    for sample in drawn(entry):
        args, kwargs = with_tensors(sample)
        bound = entry.signature.bind(*args, **kwargs)
        indices = bound.arguments.get(parameter.name)
        if not isinstance(indices, pb.Tensor) or not indices.dtype.is_integer:
            continue
        bound.arguments[parameter.name] = pb.scatter_plan(pb.zeros_like(indices), 1)
        try:
            entry.function(*bound.args, **bound.kwargs)
        except pb.ShapeError:
            return True  # it is only a plan for another size that is missing
        except pb.DTypeError:
            continue
        return True
    return False


def parameter_type(entry: Public | None, p: Parameter) -> str:
    """The annotation of a parameter, as precise as is known."""
    given = "Any" if p.annotation is Parameter.empty else str(p.annotation)
    if given == "Sequence[Any]":
        return "Sequence[_ArrayLike]"
    if given != "Any":
        return given
    if p.name in BY_NAME:
        narrow = p.name == "axis" and type(p.default) is int
        return union(
            ["int" if narrow else BY_NAME[p.name], *(["None"] if p.default is None else [])]
        )
    if entry is None:
        return "Any"
    if p.name in getattr(entry, "names", ()):
        return "_ArrayLike"
    parts = seen_types(entry, p)
    if p.default is not Parameter.empty:
        parts.append(type_of(p.default))
    if p.name in PER_AXIS:
        parts.append("int | Sequence[int]")
    if "_ArrayLike" in parts and takes_plan(entry, p):
        parts.append("scatter_plan")
    unknown = "Any" in parts or set(parts) <= {"None"}  # nobody passes None alone
    return "Any" if unknown else union(parts)


def result_of(value: Any, records: dict[str, str]) -> str:
    """The annotation of a result; named tuples are added to `records`."""
    if isinstance(value, pb.Tensor):
        return "Tensor"
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        name = type(value).__name__
        fields = [
            f"    {n}: {result_of(v, records)}" for n, v in zip(value._fields, value, strict=True)
        ]
        doc = quoted(inspect.getdoc(type(value)) or "", "    ")
        records[name] = "\n".join([f"class {name}(NamedTuple):", *doc, *fields])
        return name
    if isinstance(value, (tuple, list)):
        parts = [result_of(v, records) for v in value]
        if isinstance(value, list):
            parts = sorted(set(parts))[:1] if len(set(parts)) == 1 else ["Any"]
        return f"{type(value).__name__}[{', '.join(parts)}]"
    return type(value).__name__ if type(value).__name__ in BUILTINS else "Any"


def return_type(entry: Public, records: dict[str, str]) -> str:
    """The annotation of an operation's result, from its results on samples.

    Where an option decides between an array and a tuple, nobody should have to rule one of them
    out before each use: "Any" stands for the tuple, and for both if its fields have names.
    """
    kinds = set()
    for sample in drawn(entry):
        args, kwargs = with_tensors(sample)
        kinds.add(result_of(entry.function(*args, **kwargs), records))
    if len(kinds) == 1 and not (kind := next(iter(kinds))).startswith("list"):
        return kind
    outer = {k.partition("[")[0] for k in kinds}
    if outer == {"tuple"}:
        return "tuple[Tensor, ...]"
    if outer == {"list"}:
        return "list[Tensor]"
    return "Tensor | Any" if outer == {"Tensor", "tuple"} else "Any"
