"""The launcher: machine code that walks the table of a program, without Python and its lock.

It is LLVM IR (`launcher.ll`), compiled when the first GPU is asked for something.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from importlib import resources
from typing import Any

__all__ = ["ADD", "LAUNCH", "MISCOUNTED", "REPLAY", "STOPPED", "launcher"]

LAUNCH, ADD, REPLAY = range(3)  # what launches become: launches, new nodes of a graph, its nodes
STOPPED = -2  # the status where a function of the host raised or found an error
MISCOUNTED = -4  # where there are more or fewer buffers than inputs


@cache
def _make() -> Callable[[int], Callable[..., int]]:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    text = (resources.files("pullback.runtime.cuda") / "launcher.ll").read_text("utf-8")
    triple = llvm.get_process_triple()
    machine = llvm.Target.from_triple(triple).create_target_machine(
        opt=2, reloc="pic", codemodel="small"
    )
    module = llvm.parse_assembly(text, llvm.create_context())
    module.triple, module.data_layout = triple, str(machine.target_data)
    module.verify()
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=2))
    builder.getModulePassManager().run(module, builder)
    library = llvm.JITLibraryBuilder().add_object_img(machine.emit_object(module))
    library.add_current_process().export_symbol("launcher")
    linker = llvm.create_lljit_compiler(use_jit_link=True)
    tracker = library.link(linker, "pullback_launcher")
    made = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(tracker["launcher"])
    made.owners = linker, tracker  # type: ignore[attr-defined]
    return made


def launcher(table: int) -> Callable[[int, int, int, int, int, int, tuple[Any, ...]], int]:
    """The function of a table: `play(mode, graph, stream, output, scratch, record, buffers)`.

    It gives a status: 0, an error of the driver, or one of this module.
    """
    return _make()(table)
