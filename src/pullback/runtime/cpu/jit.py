"""LLVM IR text to machine code in this process, with a cache of object code on disk."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import llvmlite.binding as llvm

__all__ = ["add_symbol", "cache_directory", "compile_ir", "host"]

# Part of every cache key: a change of what is stored, or of how code is made, gets a new number.
_CACHE_FORMAT = 1
_MAGIC = b"pullback-object\n"
_DIGEST = hashlib.sha256().digest_size
_DECLARED = re.compile(r'^declare\b[^@]*@"?([\w.$]+)', re.MULTILINE)

_symbols: dict[str, int] = {}
_loaded = 0
_lock = threading.RLock()
# A fork waits for compilations, so that the child gets an LLVM that nobody is using.
os.register_at_fork(
    before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
)


class Host(NamedTuple):
    """The CPU that code is made for."""

    triple: str
    cpu: str
    features: str
    llvmlite: str

    @property
    def vector_bits(self) -> int:
        """The widest vector registers, in bits."""
        flags = set(self.features.split(","))
        return 512 if "+avx512f" in flags else 256 if "+avx2" in flags else 128


class _Engine(NamedTuple):
    machine: llvm.TargetMachine
    linker: llvm.LLJIT


@functools.cache
def host() -> Host:
    """Describes the CPU of this machine as LLVM sees it."""
    import llvmlite
    import llvmlite.binding as llvm

    features = llvm.get_host_cpu_features()
    if features.get("avx512f"):
        # LLVM halves 512-bit vectors on many CPUs unless told not to; measured 1.3-1.7x slower.
        features["prefer-256-bit"] = False
    return Host(
        llvm.get_process_triple(),
        llvm.get_host_cpu_name(),
        features.flatten(),
        llvmlite.__version__,
    )


@functools.cache
def _engine() -> _Engine:
    """The code generator and the linker of this process; neither is ever freed."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_triple(host().triple)
    # Position-independent code reaches symbols outside it through a table that the linker fills,
    # so cached objects hold no address of a past process.
    options = {"cpu": host().cpu, "features": host().features, "opt": 3, "reloc": "pic"}
    machine = target.create_target_machine(codemodel="small", **options)
    linked = target.create_target_machine(codemodel="small", **options)
    return _Engine(machine, llvm.create_lljit_compiler(linked, use_jit_link=True))


def add_symbol(name: str, address: int) -> None:
    """Lets IR compiled from now on call the C function at `address` by `name`."""
    _symbols[name] = address


def compile_ir(
    text: str, symbols: Sequence[str], *, optimise: bool = False, plain_loops: bool = False
) -> dict[str, int]:
    """Returns the addresses of `symbols` defined by the LLVM module `text`.

    The code lives as long as the process. No pass runs over the IR unless `optimise` is set;
    `plain_loops` leaves out those that widen and unroll loops, which take half of the time.
    Undefined names are looked for among `add_symbol` names, then in the process.
    """
    passes = "" if not optimise else "plain" if plain_loops else "passes"
    key = _key(text, passes)
    path = _entry(key)
    with _lock:
        code = _read(path) if path else None
        if code is None:
            code = _emit(text, passes)
            if path:
                _write(path, code)
        return _link(code, text, symbols)


def _key(text: str, passes: str) -> str:
    parts = (str(_CACHE_FORMAT), *host(), passes, text)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _emit(text: str, passes: str) -> bytes:
    """Object code of a module."""
    import llvmlite.binding as llvm

    machine = _engine().machine
    try:
        module = llvm.parse_assembly(text)
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
    return machine.emit_object(module)


def _link(code: bytes, text: str, symbols: Sequence[str]) -> dict[str, int]:
    global _loaded
    import llvmlite.binding as llvm

    library = llvm.JITLibraryBuilder().add_object_img(code).add_current_process()
    for name in _DECLARED.findall(text) if _symbols else ():
        if name in _symbols:
            library.import_symbol(name, _symbols[name])
    for name in symbols:
        library.export_symbol(name)
    _loaded += 1
    try:
        tracker = library.link(_engine().linker, f"pullback{_loaded}")
    except RuntimeError as error:
        raise RuntimeError(f"compile_ir: cannot link, {error}\n{text}") from error
    addresses = {name: tracker[name] for name in symbols}
    tracker.detach()  # the code stays: nobody can know who still holds an address
    return addresses


def cache_directory() -> Path | None:
    """Where object code is kept: $PULLBACK_CACHE_DIR (none if empty), or the user's cache."""
    chosen = os.environ.get("PULLBACK_CACHE_DIR")
    if chosen is not None:
        return Path(chosen) if chosen else None
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "pullback"
    except RuntimeError:  # no home directory
        return None


def _entry(key: str) -> Path | None:
    directory = cache_directory()
    return directory / "cpu" / key[:2] / key if directory else None


def _read(path: Path) -> bytes | None:
    """The object code stored at `path`, or None if there is none that can be trusted."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    code = data[len(_MAGIC) + _DIGEST :]
    intact = data[: len(_MAGIC) + _DIGEST] == _MAGIC + hashlib.sha256(code).digest()
    return code if intact else None


def _write(path: Path, code: bytes) -> None:
    """Stores `code` in one step, so that another process sees all of it or nothing."""
    temporary = path.with_name(f".{path.name}.{os.urandom(8).hex()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(_MAGIC + hashlib.sha256(code).digest() + code)
        os.replace(temporary, path)
    except OSError:  # a full or read-only disk costs time, not the result
        with contextlib.suppress(OSError):
            temporary.unlink()
