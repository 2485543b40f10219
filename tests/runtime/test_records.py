"""Params of kernels by name: a kernel finds each word where the host has put it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pullback.compile.program.nest import coalesce
from pullback.runtime.cpu import native
from pullback.runtime.cpu.llvm import jit
from pullback.runtime.cpu.llvm.builder import IRModule as CodeModule
from pullback.runtime.cpu.llvm.builder import address, kernel
from pullback.runtime.cpu.llvm.records import NamedParams, Params, Record
from pullback.runtime.cpu.llvm.writer import Function, IRModule
from pullback.runtime.cpu.loops.nest import Streams

MIXED = Record("out", "n (size *place)[axes] *other step[steps] last", axes=2, steps=3)
GIVEN: dict[str, Any] = {
    "out": 0, "n": 11, "size": [12, 13], "place": [0, 1], "other": 1, "step": [14, 15, 16],
    "last": 17,
}  # fmt: skip


def value(word: Any) -> int:
    """What the host gives for a word."""
    return GIVEN[word] if isinstance(word, str) else GIVEN[word[0]][word[1]]


def run(code: Any, count: int) -> list[int]:
    """The int64 numbers that a kernel leaves in its output, which is slot 0."""
    stage = native.Stage(code, 1, 1, MIXED.packed(**GIVEN))
    found = native.program(1, 8 * count, (), [stage])(native.empty(8))
    return np.frombuffer(memoryview(found), np.int64).tolist()  # type: ignore[arg-type]


@pytest.mark.parametrize("unpacking", [Params, NamedParams])
def test_kernels_of_the_writer_find_all_words(unpacking: Any) -> None:
    module = IRModule()
    f = Function(module, "@kernel")
    p = unpacking(f, MIXED)
    out = p.pointer("out")
    for place, word in enumerate(reversed(MIXED.words)):
        f.do(f"store i64 {p[word]}, ptr {f.element(out, 'i64', str(place))}")
    f.finish()
    code = jit.compile_ir(module.text(), ["kernel"])["kernel"]
    assert run(code, len(MIXED)) == [value(word) for word in reversed(MIXED.words)]


def test_kernels_of_the_builder_find_all_words() -> None:
    code = kernel(CodeModule(), "kernel")
    found = MIXED.unpacked(code)
    assert set(MIXED.pointers) == {"out", ("place", 0), ("place", 1), "other"}
    for place, word in enumerate(MIXED.numbers):
        code.store(found[word], found["out"], place)
    assert run(address(code), len(MIXED.numbers)) == [value(word) for word in MIXED.numbers]


@pytest.mark.parametrize(
    "changed",
    [
        {"n": None},  # a word that is missing
        {"size": None, "place": None},
        {"more": 1},  # one that nobody reads
        {"last": None, "lost": 1},
        {"size": [12]},  # too few, and too many, of those that are repeated
        {"size": [12, 13, 14], "place": [0, 1, 1]},
        {"step": [14, 15]},
    ],
)
def test_params_that_are_missing_or_superfluous_are_errors(changed: dict[str, Any]) -> None:
    given = {name: x for name, x in (GIVEN | changed).items() if x is not None}
    with pytest.raises((AssertionError, KeyError, ValueError)):
        MIXED.packed(**given)


def test_the_words_of_a_nest() -> None:
    """Rank, slot and offset of each array, the kernel's own numbers; then come the axes."""
    record, nest = Streams(2, "first step[arrays]"), coalesce((3, 5), [(80, 8), (8, 40)])
    head = record.head(nest, (4, 6), (0, 16), first=7, step=[8, 9])
    assert head == (2, 4, 0, 6, 16, 7, 8, 9)
    assert record.head(nest, (4, 6), first=7, step=[8, 9]) == (2, 4, 0, 6, 0, 7, 8, 9)
    with pytest.raises(AssertionError):
        record.head(nest, (4, 6), first=7)
