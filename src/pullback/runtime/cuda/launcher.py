"""The launcher: machine code that walks the table of a program, without Python and its lock.

It is LLVM IR (`launcher.ll`), compiled when the first GPU is asked for something.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from importlib import resources
from threading import Lock
from typing import Any

__all__ = ["ADD", "LAUNCH", "MISCOUNTED", "REPLAY", "STOPPED", "addresses", "launcher", "wait"]

LAUNCH, ADD, REPLAY = range(3)  # what launches become: launches, new nodes of a graph, its nodes
STOPPED = -2  # the status where a function of the host raised or found an error
MISCOUNTED = -4  # where there are more or fewer buffers than inputs
_making = Lock()  # the launcher: two threads may ask for it first


@cache
def _linker() -> Any:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.create_lljit_compiler(use_jit_link=True)


def addresses(name: str, text: str, symbols: Sequence[str]) -> dict[str, int]:
    """The addresses of what an LLVM module defines; its code lives as long as the process."""
    import llvmlite.binding as llvm

    linker, triple = _linker(), llvm.get_process_triple()
    target = llvm.Target.from_triple(triple)
    machine = target.create_target_machine(opt=2, reloc="pic", codemodel="small")
    module = llvm.parse_assembly(text, llvm.create_context())
    module.triple, module.data_layout = triple, str(machine.target_data)
    module.verify()
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=2))
    builder.getModulePassManager().run(module, builder)
    library = llvm.JITLibraryBuilder().add_object_img(machine.emit_object(module))
    library.add_current_process()
    for symbol in symbols:
        library.export_symbol(symbol)
    tracker = library.link(linker, name)
    found = {symbol: tracker[symbol] for symbol in symbols}
    tracker.detach()
    return found


@cache
def _made() -> tuple[Callable[[int], Callable[..., int]], Callable[[int, int], int]]:
    text = (resources.files("pullback.runtime.cuda") / "launcher.ll").read_text("utf-8")
    found = addresses("pullback_launcher", text, ["launcher", "wait"])
    one, two = (ctypes.PYFUNCTYPE(ctypes.py_object, *[ctypes.py_object] * n) for n in (1, 2))
    return one(found["launcher"]), two(found["wait"])


def _functions() -> tuple[Callable[[int], Callable[..., int]], Callable[[int, int], int]]:
    with _making:
        return _made()


def wait(entries: int, stream: int) -> int:
    """Return when all work on a stream is done: a status of the driver, whose functions are at an
    address. Signals are handled meanwhile.
    """
    return _functions()[1](entries, stream)


def launcher(table: int) -> Callable[[int, int, int, int, int, int, tuple[Any, ...]], int]:
    """The function of a table: `play(mode, graph, stream, output, scratch, record, buffers)`.

    It gives a status: 0, an error of the driver, or one of this module.
    """
    return _functions()[0](table)
