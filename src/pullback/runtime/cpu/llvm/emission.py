"""Object code from LLVM IR, by several threads at a time, each with a code generator of its own."""

from __future__ import annotations

import ctypes
import functools
import os
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from pullback.core.errors import DeviceError

if TYPE_CHECKING:
    import llvmlite.binding as llvm

__all__ = ["Host", "emit", "host", "left_out", "target_machine", "workers"]

MOST_WORKERS = 4  # threads that make code at a time, each with a code generator of its own


class Host(NamedTuple):
    """The CPU that code is made for."""

    triple: str
    cpu: str
    features: str
    llvmlite: str

    @property
    def vector_bits(self) -> int:
        """The widest vector registers, in bits."""
        return _vector_bits(self.features)


@functools.cache
def _vector_bits(features: str) -> int:
    flags = set(features.split(","))
    return 512 if "+avx512f" in flags else 256 if "+avx2" in flags else 128


# Levels of the x86-64 psABI by name: instructions that all CPUs of a level have.
_V3 = frozenset(
    [
        *("64bit", "cmov", "cx8", "cx16", "fxsr", "mmx", "sse", "sse2", "sse3", "ssse3", "sse4.1"),
        *("sse4.2", "popcnt", "sahf", "crc32", "avx", "avx2", "bmi", "bmi2", "f16c", "fma"),
        *("lzcnt", "movbe", "xsave"),
    ]
)
_V4 = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
_LEVELS = {"x86-64-v3": _V3, "x86-64-v4": _V4}


@functools.cache
def host() -> Host:
    """Describes the CPU of this machine as LLVM sees it, or the level of PULLBACK_CPU."""
    import llvmlite
    import llvmlite.binding as llvm

    features, name = llvm.get_host_cpu_features(), llvm.get_host_cpu_name()
    level = os.environ.get("PULLBACK_CPU")
    if level:
        name = level
        for feature in left_out(level, features):
            features[feature] = False
    if features.get("avx512f"):
        # LLVM halves 512-bit vectors on many CPUs unless told not to; measured 1.3-1.7x slower.
        features["prefer-256-bit"] = False
    return Host(llvm.get_process_triple(), name, features.flatten(), llvmlite.__version__)


def left_out(level: str, features: Mapping[str, bool]) -> set[str]:
    """The features of this CPU that are beyond a level."""
    kept = _LEVELS.get(level)
    if kept is None:
        names = ", ".join(_LEVELS)
        raise DeviceError(f"cpu: PULLBACK_CPU is one of {names}, got {level!r}.")
    missing = sorted(name for name in kept if not features.get(name))
    if missing:
        raise DeviceError(f"cpu: PULLBACK_CPU is {level}, but this CPU has no {missing[0]}.")
    return set(features) - kept


def target_machine() -> llvm.TargetMachine:
    """A new code generator for this CPU."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_triple(host().triple)
    # Position-independent code reaches symbols outside it through a table that the linker fills,
    # so cached objects hold no address of a past process.
    options = {"cpu": host().cpu, "features": host().features, "opt": 3, "reloc": "pic"}
    return target.create_target_machine(codemodel="small", **options)


@functools.cache
def workers() -> int:
    """How many threads can make code at a time."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(MOST_WORKERS, cores or 1))


class _Generator:
    """A code generator, its context, and the lock of the thread that uses them."""

    def __init__(self):
        self.lock = threading.Lock()
        self._made: tuple[Any, Any] | None = None

    def tools(self) -> tuple[llvm.TargetMachine, llvm.ContextRef]:
        import llvmlite.binding as llvm

        if self._made is None:
            self._made = target_machine(), llvm.create_context()
        return self._made


_generators = [_Generator() for _ in range(MOST_WORKERS)]


def _hold() -> None:
    for g in _generators:
        g.lock.acquire()


def _release() -> None:
    for g in _generators:
        g.lock.release()


# A fork waits for compilations, so that the child gets an LLVM that nobody is using.
os.register_at_fork(before=_hold, after_in_parent=_release, after_in_child=_release)


def emit(text: str, passes: str) -> bytes:
    """Object code of the LLVM module `text`.

    `passes` says what runs over the IR: "" is nothing, "passes" all, and "plain" all but those
    that widen and unroll loops.
    """
    able = _generators[: workers()]
    generator = next((g for g in able if not g.lock.locked()), able[0])
    with generator.lock:  # `with` itself: between `acquire` and `try` an interrupt would keep it
        return _emitted(*generator.tools(), text, passes)


def _emitted(machine: Any, context: Any, text: str, passes: str) -> bytes:
    import llvmlite.binding as llvm

    try:
        module = llvm.parse_assembly(text, context)
        module.verify()
    except RuntimeError as error:
        raise RuntimeError(f"compile_ir: invalid LLVM IR, {error}\n{text}") from error
    module.triple = host().triple
    module.data_layout = str(machine.target_data)
    if passes:
        tuning = llvm.create_pipeline_tuning_options(speed_level=2)
        if passes == "plain":
            tuning.loop_vectorization = tuning.slp_vectorization = tuning.loop_unrolling = False
        builder = llvm.create_pass_builder(machine, tuning)
        builder.getModulePassManager().run(module, builder)
    unlocked = _unlocked()
    return unlocked(machine, module) if unlocked else machine.emit_object(module)


@functools.cache
def _unlocked() -> Callable[[Any, Any], bytes] | None:
    """llvmlite's code generation, without the lock that lets one thread at a time into LLVM.

    Threads have contexts of their own here, which is what LLVM asks for.
    """
    from llvmlite.binding import ffi

    names = ("TargetMachineEmitToMemory", "GetBufferStart", "GetBufferSize", "DisposeMemoryBuffer")
    library = ctypes.CDLL(ffi.lib._name)
    if not all(hasattr(library, f"LLVMPY_{name}") for name in names):
        return None  # another llvmlite than the ones that are known
    generate, start, size, dispose = (getattr(library, f"LLVMPY_{name}") for name in names)
    pointer = ctypes.c_void_p
    generate.argtypes = [pointer, pointer, ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)]
    start.argtypes = size.argtypes = dispose.argtypes = [pointer]
    generate.restype = start.restype = pointer
    size.restype, dispose.restype = ctypes.c_size_t, None

    def emitted(machine: Any, module: Any) -> bytes:
        problem = ctypes.c_char_p()
        buffer = generate(machine, module, 1, ctypes.byref(problem))
        if not buffer:
            raise RuntimeError(f"compile_ir: LLVM cannot make code, {problem.value!r}\n{module}")
        code = ctypes.string_at(start(buffer), size(buffer))
        dispose(buffer)
        return code

    return emitted
