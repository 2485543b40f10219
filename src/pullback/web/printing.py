"""WebGPU's kernels printed without a GPU: the target keeps the program instead of encoding it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

from pullback.compile.program.stages import Program
from pullback.core.errors import DeviceError
from pullback.ir.graph import Graph
from pullback.ir.lowering import Intrinsic
from pullback.runtime.webgpu.target import WebgpuTarget

__all__ = ["Printed", "PrintingTarget", "host_operations"]


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

    def encode(self, program: Program, /) -> Printed:
        return Printed(program)


def host_operations(graph: Graph) -> Iterator[str]:
    """The operations of a graph, and of graphs inside, that call Python."""
    for eq in graph.equations:
        low = getattr(eq.op, "lowering", None)
        if isinstance(low, Intrinsic) and low.name in ("host", "effect"):
            yield eq.op.name
        for inner in eq.static.values():
            if isinstance(inner, Graph):
                yield from host_operations(inner)
