"""Sources of the kernels of attention: files of `kernels`, with the types and extents of a case."""

from __future__ import annotations

from functools import cache
from importlib import resources

from pullback.core import dtypes as dt
from pullback.core.dtypes import DType
from pullback.core.precision import DEFAULT
from pullback.runtime.cuda.gemm.kinds import kind_of
from pullback.runtime.cuda.gemm.sources import head_of, text_of
from pullback.runtime.cuda.kernels import NEST
from pullback.runtime.cuda.printer import Source

__all__ = ["kernel_source"]


@cache
def _text(name: str) -> str:
    folder = resources.files("pullback.runtime.cuda.attention") / "kernels"
    return (folder / f"{name}.cu").read_text()


@cache
def kernel_source(name: str, file: str, dtype: DType, words: tuple[tuple[str, object], ...]) -> str:
    """The source of a file; NAME in it is `name`, and `words` are defined before it."""
    source = Source()
    source.add("pb_nest", NEST)
    source.add("pb_head", head_of(dtype, dt.float32))
    kind = kind_of(dtype, DEFAULT)
    assert kind is not None
    words = (*words, *kind.words())
    source.add("pb_words", "\n".join(f"#define {w} {v}" for w, v in words))
    source.add("pb_unit", "typedef Stored Unit;")
    for part in ("copies", "fragments"):
        source.add(f"pb_{part}", text_of(part))
    for part in ("panels", file):
        source.add(f"pb_{part}", _text(part).replace("NAME", name))
    return source.text()
