"""The whole WGSL text of a kernel: bindings, and the functions through which a source sees them.

    load{k}(i)        item i of array k: u32, or vec2<u32> of items "u64"; smaller ones are extended
    store{k}(i, v)    where its mode is "write" or "atomic"
    add{k}, max{k}, min{k}, or{k}, and{k} (i, v)    where it is "atomic"; they give the old word
    arg(j)            word j of the dispatch
    pb_zero()         0, which no compiler can know

Drivers specialise kernels for numbers of a uniform buffer that decide branches, so the zero is read
at an index that they can't know: buffers have fewer than 2**31 bytes.

Arrays that are in one buffer share its binding: WebGPU allows no second one if one is written. The
words of a dispatch lie in a record: 0, then where each array starts in items (of 4 bytes at most),
then its own words. Items smaller than a word are stored by two atomic operations, so that any
thread may store any of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from pullback.runtime.webgpu.arithmetic import Arithmetic, double_functions, exact_functions
from pullback.runtime.webgpu.library import library_of

__all__ = ["kernel_head", "whole_text"]

_ATOMICS = {"add": "Add", "max": "Max", "min": "Min", "or": "Or", "and": "And"}


def whole_text(
    source: str,
    arrays: Sequence[tuple[str, str]],
    bindings: Sequence[int],
    count: int,
    arithmetic: Arithmetic,
) -> tuple[str, tuple[bool, ...], int]:
    """The text for arrays (item, mode) in buffers of these numbers and `count` words; then which
    buffers are written, and the bytes of a record.
    """
    return _whole_text(source, tuple(arrays), tuple(bindings), count, arithmetic)


@lru_cache(4096)
def _whole_text(
    source: str,
    arrays: tuple[tuple[str, str], ...],
    bindings: tuple[int, ...],
    count: int,
    arithmetic: Arithmetic,
) -> tuple[str, tuple[bool, ...], int]:
    head, written, nbytes = kernel_head(arrays, bindings, count)
    text = f"{source}\n{exact_functions(source, arithmetic)}"
    own = double_functions(arithmetic.double_fma) if arithmetic.double else None
    return "\n".join([head, library_of(text, own), text]), written, nbytes


def kernel_head(
    arrays: Sequence[tuple[str, str]], bindings: Sequence[int], count: int
) -> tuple[str, tuple[bool, ...], int]:
    """What stands before the source in `whole_text`, which buffers are written, the bytes of a
    record.
    """
    buffers = range(max(bindings, default=-1) + 1)
    written, atomic = [False for _ in buffers], [False for _ in buffers]
    for (item, mode), b in zip(arrays, bindings, strict=True):
        written[b] |= mode != "read"
        atomic[b] |= mode == "atomic" or (mode == "write" and item in ("u8", "u16"))
    size = -(-(1 + len(arrays) + count) // 4)
    lines = [
        f"struct PbRecord {{ words: array<vec4<u32>, {size}> }}",
        "@group(0) @binding(0) var<uniform> pb_record: PbRecord;",
        "fn pb_word(k: u32) -> u32 { return pb_record.words[k >> 2u][k & 3u]; }",
        "fn pb_zero() -> u32 { return pb_record.words[0][arrayLength(&pb_b0) >> 29u]; }",
        f"fn arg(j: u32) -> u32 {{ return pb_word(j + {1 + len(arrays)}u); }}",
    ]
    for b in buffers:
        access = "read_write" if written[b] else "read"
        kind = "atomic<u32>" if atomic[b] else "u32"
        lines.append(f"@group(0) @binding({b + 1}) var<storage, {access}> pb_b{b}: array<{kind}>;")
    for k, ((item, mode), b) in enumerate(zip(arrays, bindings, strict=True)):
        lines += _accessors(k, item, mode, f"pb_b{b}", atomic[b])
    return "\n".join(lines), tuple(written), 16 * size


def _accessors(k: int, item: str, mode: str, name: str, atomic: bool) -> list[str]:
    start = f"pb_record.words[{(k + 1) >> 2}][{(k + 1) & 3}]"

    def read(at: str) -> str:
        return f"atomicLoad(&{name}[{at}])" if atomic else f"{name}[{at}]"

    def write(at: str, value: str) -> str:
        return f"atomicStore(&{name}[{at}], {value});" if atomic else f"{name}[{at}] = {value};"

    if item == "u32":
        lines = [f"fn load{k}(i: u32) -> u32 {{ return {read(f'{start} + i')}; }}"]
        if mode != "read":
            lines.append(f"fn store{k}(i: u32, v: u32) {{ {write(f'{start} + i', 'v')} }}")
        if mode == "atomic":
            lines += [
                f"fn {own}{k}(i: u32, v: u32) -> u32"
                f" {{ return atomic{call}(&{name}[{start} + i], v); }}"
                for own, call in _ATOMICS.items()
            ]
        return lines
    if item == "u64":
        pair = f"vec2<u32>({read('j')}, {read('j + 1u')})"
        lines = [f"fn load{k}(i: u32) -> vec2<u32> {{ let j = {start} + 2u * i; return {pair}; }}"]
        if mode != "read":
            both = f"{write('j', 'v.x')} {write('j + 1u', 'v.y')}"
            lines.append(
                f"fn store{k}(i: u32, v: vec2<u32>) {{ let j = {start} + 2u * i; {both} }}"
            )
        return lines
    shift, mask, bits = (2, 0xFF, 3) if item == "u8" else (1, 0xFFFF, 4)
    place = f"let j = {start} + i; let s = (j & {(1 << shift) - 1}u) << {bits}u;"
    lines = [
        f"fn load{k}(i: u32) -> u32 {{ {place} return ({read(f'j >> {shift}u')} >> s) & {mask}u; }}"
    ]
    if mode != "read":
        word = f"&{name}[j >> {shift}u]"
        lines.append(
            f"fn store{k}(i: u32, v: u32) {{ {place} atomicAnd({word}, ~({mask}u << s));"
            f" atomicOr({word}, v << s); }}"
        )
    return lines
