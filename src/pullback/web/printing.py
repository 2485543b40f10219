"""WebGPU's kernels printed without a GPU: the target keeps the program instead of encoding it."""

from __future__ import annotations

from typing import Any, NoReturn

from pullback.compile.program.stages import Program
from pullback.core.errors import DeviceError
from pullback.ir.graph import Graph
from pullback.ir.lowering import Intrinsic
from pullback.runtime.webgpu.target import WebgpuTarget

__all__ = ["Printed", "PrintingTarget", "calls_python"]


class Printed:
    """A program that is there to be looked at."""

    def __init__(self, program: Program):
        self.program = program

    def __call__(self, *buffers: Any) -> NoReturn:
        raise DeviceError("export_web: a printed program runs in web pages only.")


class PrintingTarget(WebgpuTarget):
    """The kernels of `device="webgpu"`, for which no adapter is asked."""

    def __init__(self):
        """There is no GPU."""

    def encode(self, program: Program, faults: object = (), /) -> Printed:
        return Printed(program)


def calls_python(graph: Graph) -> bool:
    """Whether an operation of a graph, or of a graph inside, is a function of the host."""
    for eq in graph.equations:
        low = getattr(eq.op, "lowering", None)
        if isinstance(low, Intrinsic) and low.name in ("host", "effect"):
            return True
        if any(isinstance(g, Graph) and calls_python(g) for g in eq.static.values()):
            return True
    return False
