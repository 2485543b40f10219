"""Sources of the kernels of products: files of `kernels`, with the types and extents of a case."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources

from pullback.compile.kernel import order
from pullback.core import dtypes as dt
from pullback.core.dtypes import DType
from pullback.runtime.cuda.gemm.endings import EndCode
from pullback.runtime.cuda.kernels import NEST
from pullback.runtime.cuda.printer import Source, convert, storage

__all__ = ["add_ended", "head_of", "kernel_source", "text_of", "wide_of"]


def wide_of(dtype: DType) -> DType:
    """The dtype in which products are added up."""
    return dt.float32 if dtype in (dt.float16, dt.bfloat16) else dtype


@cache
def text_of(name: str) -> str:
    """The text of a file of `kernels`."""
    folder = resources.files("pullback.runtime.cuda.gemm") / "kernels"
    return (folder / f"{name}.cu").read_text()


def head_of(stored: DType, value: DType) -> str:
    """The types that kernels are about, and what lies between them."""
    return (
        f"typedef {storage(stored)} Stored;\ntypedef {storage(value)} Value;\n"
        f"PB_DEVICE Value pb_wide(Stored x) {{ return {convert('x', stored, value)}; }}\n"
        f"PB_DEVICE Stored pb_narrow(Value x) {{ return {convert('x', value, stored)}; }}"
    )


def kernel_source(
    name: str,
    files: tuple[str, ...],
    stored: DType,
    value: DType,
    words: Mapping[str, object],
    end: EndCode | None = None,
) -> str:
    """The source of some files; NAME in them is `name`, and `words` are defined before them.

    The last one may have an end.
    """
    return _source(name, files, stored, value, tuple(sorted(words.items())), end)


def add_ended(source: Source, file: str, name: str, end: EndCode | None) -> None:
    """Add a file of a kernel `name`, which may have an end."""
    if end is not None:
        end.add_to(source)
    text = text_of(file).replace("NAME", name)
    source.add(f"pb_{file}", text.replace(" MORE", end.parameters() if end else ""))


@cache
def _source(
    name: str,
    files: tuple[str, ...],
    stored: DType,
    value: DType,
    words: tuple[tuple[str, object], ...],
    end: EndCode | None,
) -> str:
    source = Source()
    source.add("pb_nest", NEST)
    source.add("pb_head", head_of(stored, value))
    defined = [f"#define {w} {v}" for w, v in (*words, ("CHAIN", order.CHUNK))]
    source.add("pb_words", "\n".join(defined))
    for file in ("copies", *files[:-1]):
        source.add(f"pb_{file}", text_of(file).replace("NAME", name))
    add_ended(source, files[-1], name, end)
    return source.text()
