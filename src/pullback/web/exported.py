"""A traced function as a program whose arguments, weights and results have names and places."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from pullback.compile.function.compiled import Compiled
from pullback.compile.function.unit import Unit
from pullback.compile.program.executable import Executable
from pullback.core import pytrees
from pullback.core.avals import Aval
from pullback.core.dtypes import as_dtype, complex128, float64
from pullback.core.errors import DeviceError, DTypeError, TraceError
from pullback.ir.array import make
from pullback.ir.convert import as_array, to_numpy
from pullback.ir.graph import Graph
from pullback.web.printing import Printed, PrintingTarget, calls_python
from pullback.web.program import INPUTS, WEIGHTS, WORK, PagePlace, PageProgram, lines
from pullback.web.trees import arguments_tree, is_array, results_tree
from pullback.web.weights import WeightNames, memory_of

__all__ = ["Exported", "PageArray"]

CONSTANT_BYTES = 256  # of an array without a name that is written into the module: a line or two


class PageArray(NamedTuple):
    """An array that a page gives, gets or loads, and where it is."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    place: PagePlace
    nbytes: int
    contents: np.ndarray | None = None  # of a weight


class Exported:
    """What there is to write; `planned` is None where nothing is computed."""

    def __init__(
        self, function: Callable[..., Any], unit: Unit, args: tuple, kwargs: dict, name: str
    ):
        self.name, self._unit, self._given = name, unit, (args, kwargs)
        if unit.written:
            raise TraceError(
                f"export_web: `{name}` updates an argument in place, which a page would not see."
                " Return the new value."
            )
        if calls_python(unit.optimised):
            raise DeviceError(
                f"export_web: `{name}` calls Python while it runs, and a web page has none. Leave"
                " out pure_callback, debug.print and the like."
            )
        self._names = WeightNames(function)
        self.weights: list[PageArray] = []
        self.constants: list[PageArray] = []
        self.weight_bytes = self.input_bytes = 0
        self.inputs = arguments_tree(function, args, kwargs)
        inputs = unit.optimised.inputs
        self.arguments = [self._argument(f.path, inputs[f.number].aval) for f in self.inputs.leaves]
        avals = [v.aval for v in unit.optimised.outputs]
        self.outputs = results_tree(unit.build([make(None, av) for av in avals]))
        names = [leaf.path or "result" for leaf in self.outputs.leaves]
        for name, av in zip(names, avals, strict=True):
            _check(name, av)
        self.planned: PageProgram | None = None
        places = self._compiled(unit.optimised)
        self.results = [_placed(*row) for row in zip(names, avals, places, strict=True)]

    def _argument(self, path: str, av: Aval) -> PageArray:
        _check(path, av)
        found = _placed(path, av, PagePlace(INPUTS, self.input_bytes))
        self.input_bytes += lines(found.nbytes)
        return found

    def _weight(self, buf: Any, av: Aval) -> PagePlace:
        """The place of a captured array, which is stored as it lies in memory."""
        contents, first = memory_of(buf, av)
        own = self._stored(buf, contents, "constant")
        return PagePlace(WEIGHTS, own.byte + first * contents.itemsize)

    def _stored(self, buf: Any, contents: np.ndarray, default: str) -> PagePlace:
        """The place of numbers; few that the user has no name for are part of the module."""
        dtype, nbytes = as_dtype(contents.dtype).name, contents.nbytes
        own = PagePlace(WEIGHTS, self.weight_bytes)
        self.weight_bytes += lines(nbytes)
        if nbytes <= CONSTANT_BYTES and not self._names.has(buf):
            self.constants.append(PageArray(default, dtype, contents.shape, own, nbytes, contents))
        else:
            name, shape = self._names.of(buf, contents.shape, default)
            self.weights.append(PageArray(name, dtype, shape, own, nbytes, contents.reshape(shape)))
        return own

    def _table(self, contents: np.ndarray) -> PagePlace:
        """The place of numbers that a kernel reads."""
        return self._stored(contents, contents, "table")

    def _compiled(self, graph: Graph) -> list[PagePlace]:
        """Plan the program; where its outputs are."""
        compiled = Compiled(graph, self._unit.budget, PrintingTarget())
        places = [a.place for a in self.arguments]
        places += [self._weight(x._buf, x._aval) for x in self._unit.lifted]
        computed = self._planned(compiled, places)
        found = []
        for kind, where in compiled.sources:
            if kind == "computed":
                found.append(computed[where])
            elif kind == "input":
                found.append(places[where])
            else:
                found.append(self._weight(*_dense(*where)))
        return found

    def _planned(self, compiled: Compiled, places: list[PagePlace]) -> list[PagePlace]:
        """The places of what is computed."""
        if compiled.executable is None:
            return []
        assert isinstance(compiled.executable, Executable)  # none of an earlier process
        assembled = compiled.executable.assembled()
        constants = [self._weight(*v.constant[:2]) for v in assembled.constants]
        assert isinstance(assembled.program, Printed)
        program = assembled.program.program
        self.planned = PageProgram(
            self.name, assembled, program, [*places, *constants], self._table
        )
        own = compiled.executable.graph.constants
        found = []
        for kind, at, after in assembled.outputs:
            base = PagePlace(WORK, at)
            if kind == "input":
                base = places[at]
            elif kind == "constant":
                base = self._weight(*own[at].constant[:2])
            found.append(PagePlace(base.buffer, base.byte + after))
        return found

    def example(self) -> dict[str, np.ndarray]:
        """The arguments and the results for them, by name."""
        given = [as_array(x, "export_web") for x in pytrees.leaves(self._given) if is_array(x)]
        found = self._unit.run([*given, *self._unit.lifted])
        pairs = [
            *(("inputs", a, x) for a, x in zip(self.arguments, given, strict=True)),
            *(("outputs", r, x) for r, x in zip(self.results, found, strict=True)),
        ]
        return {f"{kind}.{a.name}": to_numpy(x).copy(order="C") for kind, a, x in pairs}


def _placed(name: str, av: Aval, place: PagePlace) -> PageArray:
    return PageArray(name, av.dtype.name, av.shape, place, av.nbytes)


def _check(name: str, av: Aval) -> None:
    """Raise for a dtype that no page has."""
    if av.dtype in (float64, complex128):
        other = "float32" if av.dtype is float64 else "complex64"
        raise DTypeError(
            f"export_web: `{name}` is {av.dtype.name}, which WebGPU lacks. Use {other}, as in"
            f' pb.tensor(..., dtype="{other}").'
        )


def _dense(buf: Any, av: Aval) -> tuple[Any, Aval]:
    """A constant whose elements follow one another: results are copied as they lie."""
    copy = as_array(to_numpy(make(buf, av)).copy(order="C"), "export_web")
    return copy._buf, copy._aval
