"""The native core of the CPU runtime: Buffer, its caching allocator, kernel launch and thread pool.

The code is LLVM IR (*.ll) that calls Python's C API, so that a launch costs no more than a
builtin function and an install needs no C compiler. This module adds the tables that the C API
wants, loads the result, and describes programs to it.

A kernel is a C function that does the work units from lo to hi:

    void kernel(const int64_t *params, char **ptrs, int64_t lo, int64_t hi, int64_t *error)

`ptrs[0]` is the output, then come the inputs, then the scratch areas (or the arena and pointers
derived from others). `error` holds code, position and value, all zero; a kernel that finds an error
stores position and value, then a code that is not zero. The kernels LOOP, BRANCH, PARTS and ROWS
run other kernels: see `stages`.
"""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import os
import signal
import sys
import threading
import time
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, SupportsIndex

from pullback.compile.program.stages import Scratch, Stage
from pullback.runtime.cpu.llvm import jit

__all__ = [
    "BRANCH",
    "LOOK",
    "LOOP",
    "PARTS",
    "ROWS",
    "Buffer",
    "Scratch",
    "Stage",
    "empty",
    "encode",
    "get_threads",
    "is_foreign",
    "make_program",
    "memory",
    "program",
    "release_cached",
    "reset_peak",
    "set_cache_limit",
    "set_threads",
    "view",
    "wrap",
]


_FASTCALL, _NOARGS = 0x80, 0x04  # METH_FASTCALL and METH_NOARGS of Python's C API

# Calling convention, arguments and docstring of each function.
_FUNCTIONS = {
    "empty": (_FASTCALL, "nbytes", "A Buffer of `nbytes` uninitialised bytes, aligned to 64."),
    "view": (
        _FASTCALL,
        "buffer, byte_offset",
        "A Buffer on the memory of `buffer` from `byte_offset` on; it keeps that memory alive.",
    ),
    "wrap": (
        _FASTCALL,
        "address, nbytes, owner",
        "A Buffer on foreign memory that lives as long as the object `owner`.",
    ),
    "memory": (
        _NOARGS,
        "",
        "Bytes asked for by live buffers, their peak, bytes free in the cache, and its limit.",
    ),
    "reset_peak": (_NOARGS, "", "Starts the peak again from the live bytes."),
    "release_cached": (
        _NOARGS,
        "",
        "Gives all free blocks back to the system; returns their bytes.",
    ),
    "set_cache_limit": (_FASTCALL, "nbytes", "Bounds the bytes of free blocks that are kept."),
    "set_threads": (_FASTCALL, "n", "Runs programs on at most `n` threads, the caller included."),
    "get_threads": (_NOARGS, "", "The number of threads that a program may use."),
    "reset_pool": (_NOARGS, "", "Forgets all helper threads: for the child of a fork."),
    "make": (_FASTCALL, "words", "The callable program described by a Buffer of words."),
}

_TEXTS = {
    "text.none": "",
    "text.error": "(LLL)",
    "text.stats": "{s:L,s:L,s:L,s:L}",
    "text.memory": "cpu: out of memory, got a request for %zd bytes.",
    "text.type": "cpu: argument %zd must be a Buffer, got an object of %R.",
    "text.count": "%s: takes %zd arguments, got %zd.",
    "text.negative": "cpu: a size, address or count must not be negative, got %lld.",
    "text.offset": "view: the offset is outside the buffer, got %zd of %zd bytes.",
    "text.threads": "set_threads: n must be between 1 and 1024, got %zd.",
    "text.buffer": "pullback.runtime.cpu.native.Buffer",
    "text.buffer.doc": "Bytes in CPU memory.",
    "name.program": "program",
    "name.live": "live",
    "name.peak": "peak",
    "name.cached": "cached",
    "name.limit": "cache_limit",
    "name.address": "address",
    "name.nbytes": "nbytes",
    "name.owner": "owner",
    "name.weak": "__weaklistoffset__",
}


def _string(name: str, value: str) -> str:
    data = value.encode() + b"\0"
    escaped = "".join(f"\\{byte:02x}" for byte in data)
    return f'@{name} = internal constant [{len(data)} x i8] c"{escaped}"'


def _method(name: str) -> str:
    flags = _FUNCTIONS[name][0]
    return f"%MethodDef {{ ptr @name.{name}, ptr @py_{name}, i32 {flags}, ptr @doc.{name} }}"


def _tables() -> str:
    """The constants that come from the tables above."""
    lines = [_string(name, value) for name, value in _TEXTS.items()]
    for name, (_, arguments, doc) in _FUNCTIONS.items():
        signature = f"{name}({arguments}, /)" if arguments else f"{name}()"
        lines += [
            _string(f"name.{name}", name),
            _string(f"doc.{name}", f"{signature}\n--\n\n{doc}"),
        ]
    methods = ",\n  ".join([*map(_method, _FUNCTIONS), "%MethodDef zeroinitializer"])
    lines.append(f"""
@methods = internal global [{len(_FUNCTIONS) + 1} x %MethodDef] [
  {methods}]
@method.run = internal global %MethodDef {{
  ptr @name.program, ptr @py_run, i32 {_FASTCALL}, ptr null }}
""")
    return "\n".join(lines)


def _memory_size() -> int:
    """Bytes of memory of this machine, or of the control group if that allows less."""
    size = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            text = Path("/sys/fs/cgroup", name).read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            size = min(size, int(text))
    return size


_LARGEST_BLOCK = 1 << 45  # bytes: the last size class of the allocator has an index below 320


def _most_bytes() -> int:
    """Bytes that one array may have: what memory and swap hold together.

    A system that promises more than it has would kill the process when the array is written.
    """
    try:
        text = Path("/proc/meminfo").read_text()
    except OSError:  # a system that makes swap as it is needed
        return _LARGEST_BLOCK
    sizes = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    swap = 1024 * int(sizes.get("SwapTotal", "0 kB").split()[0])
    return min(_memory_size() + swap, _LARGEST_BLOCK)


def _default_threads() -> int:
    chosen = os.environ.get("PULLBACK_NUM_THREADS", "")
    if chosen:
        if not chosen.isdecimal() or not 1 <= int(chosen) <= 1024:
            raise ValueError(
                f"cpu: PULLBACK_NUM_THREADS must be a number between 1 and 1024, got {chosen!r}."
            )
        return int(chosen)
    if hasattr(os, "sched_getaffinity"):
        return min(len(os.sched_getaffinity(0)), 1024)
    return min(os.cpu_count() or 1, 1024)


def _source() -> str:
    """The IR of the native core for this machine."""
    # Free-threaded, 32-bit and reference-tracing builds have another object header.
    if sys.implementation.name != "cpython" or object.__basicsize__ != 16:
        raise ImportError("cpu: needs a 64-bit CPython with the GIL, got another build of Python.")
    architecture = jit.host().triple.partition("-")[0].replace("arm64", "aarch64")
    if os.name != "posix" or architecture not in ("x86_64", "aarch64"):
        raise ImportError(f"cpu: needs a POSIX system on x86-64 or ARM, got {jit.host().triple}.")
    directory = Path(__file__).parent
    system = "linux" if sys.platform == "linux" else "posix"
    parts = (architecture, system, "memory", "buffer", "signals", "helpers", "pool", "stages")
    return "\n".join(
        [
            *((directory / f"{part}.ll").read_text("utf-8") for part in (*parts, "program")),
            _tables(),
        ]
    )


_KERNELS = ("run_loop", "run_branch", "run_rows", "run_parts")
_text = _source()
_addresses = jit.compile_ir(_text, ["pullback_native", "look", *_KERNELS], optimise=True)
# What kernels that run for long call with `error`, to see whether they should end. The symbol names
# the version, as cached code needs it.
LOOK = f"pullback_look_{hashlib.sha256(_text.encode()).hexdigest()[:12]}"
jit.add_symbol(LOOK, _addresses["look"])
LOOP, BRANCH, ROWS, PARTS = (_addresses[name] for name in _KERNELS)


def _load() -> dict[str, Callable[..., object]]:
    """The functions of the native core by name, and its type Buffer."""
    start = ctypes.PYFUNCTYPE(
        ctypes.py_object, *[ctypes.c_int64] * 2, *[ctypes.c_int] * 3, *[ctypes.c_int64] * 2
    )(_addresses["pullback_native"])
    buffer, *functions = start(
        _memory_size() // 8,
        _most_bytes(),
        getattr(mmap, "MADV_HUGEPAGE", -1),
        time.CLOCK_MONOTONIC,
        signal.SIG_SETMASK,
        _default_threads(),
        threading.main_thread().ident or 0,
    )
    return {"Buffer": buffer, **dict(zip(_FUNCTIONS, functions, strict=True))}


if TYPE_CHECKING:

    class Buffer:
        """Bytes in CPU memory; made by `empty`, `view`, `wrap` and programs."""

        @property
        def address(self) -> int: ...
        @property
        def nbytes(self) -> int: ...
        @property
        def owner(self) -> object: ...
        def __buffer__(self, flags: int, /) -> memoryview: ...

    def empty(nbytes: int, /) -> Buffer: ...
    def view(buffer: Buffer, byte_offset: int, /) -> Buffer: ...
    def wrap(address: int, nbytes: int, owner: object, /) -> Buffer: ...
    def memory() -> dict[str, int]: ...
    def reset_peak() -> None: ...
    def release_cached() -> int: ...
    def set_cache_limit(nbytes: int, /) -> None: ...
    def set_threads(n: int, /) -> None: ...
    def get_threads() -> int: ...
    def _make(words: Buffer, /) -> Callable[..., Buffer | tuple[int, int, int]]: ...

else:
    _core = _load()
    Buffer, _make = _core["Buffer"], _core["make"]
    empty, view, wrap = _core["empty"], _core["view"], _core["wrap"]
    memory, reset_peak = _core["memory"], _core["reset_peak"]
    release_cached, set_cache_limit = _core["release_cached"], _core["set_cache_limit"]
    set_threads, get_threads = _core["set_threads"], _core["get_threads"]
    os.register_at_fork(after_in_child=_core["reset_pool"])


def is_foreign(buf: Buffer) -> bool:
    """Whether the memory belongs to somebody else, who may write to it."""
    return buf.owner is not None and type(buf.owner) is not Buffer


def program(
    n_inputs: int,
    out_nbytes: int,
    scratch: Sequence[int],
    stages: Sequence[Stage],
    heavy: bool = False,
) -> Callable[..., Buffer | tuple[int, int, int]]:
    """A function of `n_inputs` Buffers that runs `stages` and returns the output Buffer.

    It returns (code, position, value) instead if a kernel found an error, and then runs no later
    stage; of several errors of one stage it is the one with the lowest position. The GIL is
    released if the program is `heavy` or a stage has more than one task.
    """
    return make_program(n_inputs, out_nbytes, scratch, (), stages, heavy)


# Their addresses lie on the stack of whoever calls a program.
MOST_SLOTS = 1 << 16  # of buffers, and of pointers: half a megabyte of addresses each


def make_program(
    n_inputs: int,
    out_nbytes: int,
    scratch: Sequence[int],
    pointers: Sequence[tuple[int, int]],
    stages: Sequence[Stage],
    heavy: bool,
) -> Callable[..., Buffer | tuple[int, int, int]]:
    """A program with scratch areas (one of them may be an arena) and with derived pointers."""
    return run_words(*program_words(n_inputs, out_nbytes, scratch, pointers, stages, heavy))


def program_words(
    n_inputs: int,
    out_nbytes: int,
    scratch: Sequence[int],
    pointers: Sequence[tuple[int, int]],
    stages: Sequence[Stage],
    heavy: bool,
) -> tuple[list[SupportsIndex], int]:
    """The words of a program, and where among them its stages begin."""
    negative = [n for n in (n_inputs, out_nbytes, *scratch) if n < 0]
    if negative or n_inputs + len(scratch) > MOST_SLOTS:
        raise ValueError(
            f"program: needs sizes >= 0 and at most {MOST_SLOTS} buffers, got {n_inputs} inputs, "
            f"an output of {out_nbytes} bytes and scratch {list(scratch)[:8]}."
        )
    if len(pointers) > MOST_SLOTS:
        raise ValueError(f"program: takes at most {MOST_SLOTS} pointers, got {len(pointers)}.")
    first = n_inputs + 1 + len(scratch)
    for k, (base, _) in enumerate(pointers):
        if not 0 <= base < first + k:
            raise ValueError(
                f"program: a pointer needs a base before its slot {first + k}, got {base}."
            )
    heavy = heavy or any([stage.units > stage.grain for stage in stages])
    first = 6 + len(scratch) + 2 * len(pointers)
    words: list[SupportsIndex] = [
        n_inputs, out_nbytes, len(scratch), heavy, len(pointers), first, *scratch
    ]  # fmt: skip
    for pair in pointers:
        words += pair
    return words + encode(stages), first


def run_words(
    words: Sequence[SupportsIndex], first: int
) -> Callable[..., Buffer | tuple[int, int, int]]:
    """The program of these words."""
    # A parameter that is no plain integer is the address of memory that it owns.
    owners = [word for word in words[first:] if type(word) is not int]
    return run_array(array("q", words), owners)  # type: ignore[arg-type]


def run_array(kept: array[int], owners: object) -> Callable[..., Buffer | tuple[int, int, int]]:
    """The program of words that live as long as it does, as do the owners of what they point at."""
    address, length = kept.buffer_info()
    return _make(wrap(address, length * kept.itemsize, (kept, owners)))


def single_program(
    n_inputs: int, out_nbytes: int, stage: Stage, heavy: bool
) -> Callable[..., Buffer | tuple[int, int, int]]:
    """`program` of one stage without scratch areas: what a new shape in eager mode takes."""
    code, units, grain, _ = stage
    if min(n_inputs, out_nbytes, units) < 0 or grain < 1 or not code:
        return program(n_inputs, out_nbytes, (), [stage], heavy)  # it says what is wrong
    # a stage has what its words point to
    return run_array(single_words(n_inputs, out_nbytes, stage, heavy), stage)


# Places among the words of a program of one stage.
OUT_BYTES, HEAVY, UNITS, GRAIN = 1, 3, 8, 9


def single_words(n_inputs: int, out_nbytes: int, stage: Stage, heavy: bool) -> array[int]:
    """The words of a program of one stage without scratch areas."""
    code, units, grain, params = stage
    split = heavy or units > grain
    words = (n_inputs, out_nbytes, 0, split, 0, 6, 1, code, units, grain, 40, *params)
    return array("q", words)  # type: ignore[arg-type]


def encode(stages: Sequence[Stage]) -> list[SupportsIndex]:
    """The stages as the words of a list: what a program runs, or the body of a loop."""
    heads: list[SupportsIndex] = [len(stages)]
    params: list[SupportsIndex] = []
    start = 1 + 4 * len(stages)
    for stage in stages:
        if not stage.code or stage.units < 0 or stage.grain < 1:
            raise ValueError(f"program: needs a kernel, units >= 0 and grain >= 1, got {stage}.")
        heads += (stage.code, stage.units, stage.grain, 8 * (start + len(params)))
        params += stage.params
    return heads + params
