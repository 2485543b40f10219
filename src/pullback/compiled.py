"""`jit`: a function traced once per kind of arguments, compiled as a whole, and run as one unit."""

from __future__ import annotations

import inspect
import os
import threading
import warnings
from collections.abc import Callable, Sequence
from functools import update_wrapper
from importlib import import_module
from pathlib import Path
from sys import _getframe, modules
from types import MethodType
from typing import TYPE_CHECKING, Any, NamedTuple

from pullback.core import dtypes, pytrees
from pullback.core.avals import default_device
from pullback.core.byte_counts import nbytes_of
from pullback.core.errors import (
    DTypeError,
    RetraceWarning,
    TraceError,
    briefly,
    shorten_caused,
)
from pullback.core.precision import get_matmul_precision
from pullback.ir.array import Array, make, mode
from pullback.ir.convert import as_array, is_numpy
from pullback.ir.graph import Graph, Var
from pullback.ir.numbers import Moving, NeedsValue
from pullback.ir.op import own_handles
from pullback.ir.plans import active
from pullback.ir.tracing import Static, inside_trace, refuse_leaked, user_line
from pullback.signatures import KnownNumbers, NumberKey, canonical, context, moved, take, take_all

if TYPE_CHECKING:
    from pullback.compile.function.unit import Unit
    from pullback.display.memory import MemoryTimeline

__all__ = ["CacheInfo", "Jitted", "Lowered", "jit"]

CACHE_SIZE = (
    64  # compiled signatures per function; the one that was not called for longest goes first
)
MANY_TRACES = 16  # for other reasons than new kinds of arrays: from here on there is a warning


class CacheInfo(NamedTuple):
    """What `cache_info` tells: `misses` counts traces."""

    hits: int
    misses: int
    maxsize: int
    currsize: int


# -- the public face -------------------------------------------------------------------------------


class Lowered:
    """A function compiled for some arguments, without having run: print it to see what it is."""

    def __init__(self, unit: Unit, function: Callable[..., Any], args: tuple, kwargs: dict):
        self._unit = unit
        self._call = function, args, kwargs

    @property
    def graph(self) -> Graph:
        """The graph as it was traced."""
        return self._unit.graph

    @property
    def optimised(self) -> Graph:
        """The graph after the passes."""
        return self._unit.optimised

    @property
    def executable(self) -> Any:
        """What the runtime made of the graph; None if there is nothing to compute."""
        return self._unit.program.executable

    @property
    def captures_variables(self) -> bool:
        """Whether the function captures arrays that somebody differentiates by."""
        return any(x._node is not None for x in self._unit.lifted)

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds that tracing and compiling took."""
        return {"trace": self._unit.seconds, "compile": self._unit.program.seconds}

    @property
    def peak_bytes(self) -> int:
        """Bytes that a call allocates: its outputs, and an arena for all that it drops."""
        return 0 if self.executable is None else self.executable.peak_bytes

    def memory(self) -> MemoryTimeline:
        """What a call keeps in memory, step by step: a text, and a page for notebooks."""
        if self.executable is None:
            raise TraceError(f"memory: `{self.graph.name}` has nothing to compute, so no memory.")
        drawn = import_module("pullback.display.memory")  # for those who look
        inputs = sum(v.aval.nbytes for v in self.graph.inputs)
        ladder = self.executable.ladder
        return drawn.MemoryTimeline(
            self.graph.name,
            self.executable.timeline,
            inputs,
            lambda: [(way.peak_bytes, way.work) for way in ladder()],
        )

    def export_web(self, folder: str | os.PathLike[str], name: str | None = None) -> Path:
        """Write files that run the function in a web page with WebGPU; the path of the module.

        `name.js` is an ES module without dependencies, `name.safetensors` what the function
        captured, `name.html` a page that runs it on the arguments and compares with the results
        that Python gives, which are in `name.example.safetensors`. `name` is the function's unless
        given. No GPU is needed here.
        """
        exporter = import_module("pullback.web.export")  # for those who export
        function, args, kwargs = self._call
        return exporter.export_web(
            function, self._unit, args, kwargs, folder, name or self._unit.graph.name
        )

    def text(self) -> str:
        """Graph, optimised graph, kernels, memory plan and times."""
        program = self._unit.program
        times = ", ".join(f"{k} {v * 1e3:.1f} ms" for k, v in self.seconds.items())
        return "\n".join(
            [
                f"traced: {len(self.graph.equations)} equations",
                repr(self.graph),
                f"optimised: {len(self.optimised.equations)} equations",
                repr(self.optimised),
                "compiled:",
                program.describe(),
                f"time: {times}",
            ]
        )

    __repr__ = text


class _Kind(str):
    """Shape and dtype of an array."""


class Jitted:
    """A function that `jit` made."""

    wraps_function = "function"  # for whoever looks for what a function captures
    exact = False  # whether passes must keep every bit

    def __init__(
        self,
        function: Callable[..., Any],
        static_argnums: int | Sequence[int] = (),
        static_argnames: str | Sequence[str] = (),
        name: str | None = None,
        memory: int | None = None,
    ):
        update_wrapper(self, function)
        self.memory = memory  # bytes that a call may allocate
        self.function = function
        self.name = name or getattr(function, "__name__", type(function).__name__)
        nums = (static_argnums,) if isinstance(static_argnums, int) else tuple(static_argnums)
        names = (static_argnames,) if isinstance(static_argnames, str) else tuple(static_argnames)
        self._static = _static_places(function, nums, names) if nums or names else None
        self._fast: dict[tuple, Unit] = {}  # by signature with strides
        self._units: dict[tuple, Unit] = {}  # by signature
        self._lock = threading.RLock()
        self._calls = self._traces = self._odd_traces = 0
        self._latest: dict[str, str] = {}
        self._numbers: dict[tuple, KnownNumbers] = {}  # by signature without values of numbers

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            # the common case comes first and on its own: untracked tensors, and a compiled function
            if kwargs or self._static is not None:
                return self._called(args, kwargs)
            try:
                avals = tuple([a._aval for a in args])
            except AttributeError:  # not all of them are tensors
                return self._called(args, kwargs)
            recording = mode.recording
            unit = self._fast.get((*avals, recording, *context()))
            if unit is None or unit.execute is None or active or (unit.captured and unit.stale()):
                return self._called(args, kwargs)
            if recording:
                for a in args:
                    if a._node is not None:
                        return self._called(args, kwargs)
            self._calls = unit.used = self._calls + 1
            computed = unit.execute([a._buf for a in args], avals)
            if unit.single is not None:
                return make(computed[0], unit.single)
            return unit.build([make(b, av) for b, av in zip(computed, unit.avals, strict=True)])
        except Exception as error:
            shorten_caused(error)
            raise error

    def _called(self, args: tuple, kwargs: dict) -> Any:
        if mode.observer is not None and mode.observer.inlines:
            return own_handles(self._inlined(args, kwargs))
        try:
            arrays, signature, args, kwargs = self._signature(args, kwargs)
        except RecursionError:
            raise pytrees.too_deep() from None
        unit = self._fast.get(signature)
        if unit is None or (unit.captured and unit.stale()):
            if any(x._aval.is_symbolic for x in arrays):
                return self._inlined(args, kwargs)
            unit, arrays, args, kwargs = self._found(signature, arrays, args, kwargs)
            if unit is None:
                return self._inlined(args, kwargs)
        self._calls = unit.used = self._calls + 1
        if unit.written:
            self._refuse_numpy(unit, args, kwargs)
        outputs = unit.run(arrays + unit.lifted if unit.lifted else arrays)
        for i, k in unit.written:
            arrays[i]._rebind("jit", outputs[k])
        return unit.build(outputs)

    def _found(
        self, signature: tuple, arrays: list[Any], args: tuple, kwargs: dict
    ) -> tuple[Unit | None, list[Any], tuple, dict]:
        """The unit for a call, perhaps with numbers as arguments, and what to run it on."""
        numbers = [k for k in signature if type(k) is NumberKey]
        if not numbers or inside_trace():
            return self._unit(signature, args, kwargs), arrays, args, kwargs
        general = canonical(tuple(k.kind if type(k) is NumberKey else k for k in signature))
        with self._lock:
            if len(self._numbers) >= 8 * CACHE_SIZE:
                self._numbers.clear()
            known = self._numbers.setdefault(general, KnownNumbers(numbers))
            known.compare(numbers)
            while known.moving:
                places = frozenset(known.moving)
                changed = moved(args, kwargs, places, arrays)
                found, wider, _, _ = self._signature(*changed, marked=True)
                try:
                    unit = self._fast.get(wider)
                    if unit is None or (unit.captured and unit.stale()):
                        unit = self._unit(wider, *changed)
                    return unit, found, *changed
                except NeedsValue as error:
                    known.fix(error.places)
                except Exception:  # an error of the function, if it comes with the values too
                    unit = self._unit(signature, args, kwargs)
                    known.fix(places)
                    return unit, arrays, args, kwargs
        return self._unit(signature, args, kwargs), arrays, args, kwargs

    def _refuse_numpy(self, unit: Unit, args: tuple, kwargs: dict) -> None:
        """Raise if the function updates an argument that is no tensor: nobody would see it."""
        leaves = pytrees.leaves((args, kwargs))
        given = [x for x in leaves if isinstance(x, (Array, Moving)) or is_numpy(x)]
        if not all(isinstance(given[i], Array) for i, _ in unit.written):
            raise TraceError(
                f"jit: `{self.name}` updates a NumPy array in place."
                " Pass a tensor, or return the result."
            )

    def _signature(
        self, args: tuple, kwargs: dict, marked: bool = False
    ) -> tuple[list[Any], tuple, tuple, dict]:
        """The arrays among the arguments, the key of the rest, the arguments in a fixed order."""
        if self._static is not None and not marked:
            args, kwargs = self._marked(args, kwargs)
        arrays: list[Any] = []
        key: list[Any] = []
        take_all(args, arrays, key)
        if kwargs:
            kwargs = dict(sorted(kwargs.items()))
            take(kwargs, arrays, key)
        return arrays, (*key, mode.recording, *context()), args, kwargs

    def __get__(self, obj: Any, owner: Any = None) -> Any:
        return self if obj is None else MethodType(self, obj)

    def __reduce__(self) -> Any:
        """How it is pickled and copied: by its name where that finds it, as functions are."""
        name = getattr(self, "__qualname__", None)
        found: Any = modules.get(self.__module__)
        for part in name.split(".") if name else ():
            found = getattr(found, part, None)
        if found is self:
            return name
        return type(self), (self.function, *(self._static or ((), ())), self.name, self.memory)

    def __repr__(self) -> str:
        return f"<jitted {self.name}>"

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """The function compiled for these arguments, to look at; nothing is run."""
        _, signature, args, kwargs = self._signature(args, kwargs)
        unit = self._unit(signature, args, kwargs)
        if unit is None:
            raise TraceError(f"lower: `{self.name}` is being traced. Call lower outside.")
        return Lowered(unit, self.function, args, kwargs)

    def export_web(self, folder: str | os.PathLike[str], *args: Any, **kwargs: Any) -> Path:
        """The function compiled for these arguments, as files for a web page with WebGPU.

        `Lowered.export_web` tells what is written: this is `lower(*args, **kwargs)` and that.
        """
        return self.lower(*args, **kwargs).export_web(folder)

    def cache_info(self) -> CacheInfo:
        """Calls that found a compiled function, traces, and how many are kept."""
        hits = max(self._calls - self._traces, 0)
        return CacheInfo(hits, self._traces, CACHE_SIZE, len(self._units))

    def clear(self) -> None:
        """Forget everything compiled."""
        with self._lock:
            self._fast.clear()
            self._units.clear()
            self._numbers.clear()
            self._calls = self._traces = self._odd_traces = 0

    def _inlined(self, args: tuple, kwargs: dict) -> Any:
        """The call as part of another function that is being traced, or is observed in detail."""

        def plain(leaf: Any) -> Any:
            if isinstance(leaf, Array):
                refuse_leaked(leaf)
            if isinstance(leaf, Static):
                return leaf.value
            return as_array(leaf, "jit") if is_numpy(leaf) else leaf

        args, kwargs = pytrees.map_tree(plain, (args, kwargs))
        return self.function(*args, **kwargs)

    def _marked(self, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        """The arguments with static ones wrapped."""
        positions, names = self._static or ((), ())
        chosen = {p if p >= 0 else p + len(args) for p in positions}
        wrapped = tuple(Static(a) if i in chosen else a for i, a in enumerate(args))
        return wrapped, {k: Static(v) if k in names else v for k, v in kwargs.items()}

    def _unit(self, signature: tuple, args: tuple, kwargs: dict) -> Unit | None:
        """The unit for a signature, traced if need be; None if it belongs to another trace."""
        general = canonical(signature)
        with self._lock:
            unit = self._units.get(general)
            updated = unit is not None and unit.stale()
            if unit is None or updated:
                if inside_trace():
                    return None
                older, unit = unit, self._traced(args, kwargs, updated)
                if unit is None:
                    return None
                if older is not None:
                    unit.compare(older)
                if len(self._units) >= CACHE_SIZE and general not in self._units:
                    del self._units[min(self._units, key=lambda k: self._units[k].used)]
                    self._fast.clear()
                self._units[general] = unit
            if updated or len(self._fast) >= 8 * CACHE_SIZE:
                self._fast.clear()
            self._fast[signature] = unit
            return unit

    def _traced(self, args: tuple, kwargs: dict, updated: bool) -> Unit | None:
        described = self._described(args, kwargs)
        before = self._traces, self._odd_traces, self._latest
        self._traces += 1
        odd = self._traces > 1 and (updated or not self._new_kinds(described))
        self._odd_traces += odd
        too_many_kinds = self._traces > CACHE_SIZE and self._traces % CACHE_SIZE == 1
        if too_many_kinds or (odd and self._odd_traces % MANY_TRACES == 0):
            self._warn(described, updated)
        self._latest = described
        compiler = import_module(
            "pullback.compile.function.unit"
        )  # programs without jit need not wait for it
        try:
            trace = compiler.Traced(self.function, self.name, args, kwargs)
        except BaseException:  # it was an attempt, and nothing is kept of it
            self._traces, self._odd_traces, self._latest = before
            raise
        foreign = [v for v in trace.graph.constants if isinstance(v.constant[0], Var)]
        if foreign or any(x._aval.is_symbolic for x in trace.lifted):
            return None  # it captured values of a trace that is going on: it belongs to that
        return compiler.Unit(trace, type(self), described, self.memory)

    def _new_kinds(self, described: dict[str, str]) -> bool:
        """Whether shapes and dtypes of arrays, and nothing else, are not what they were."""
        now, before = (set(d.items()) for d in (described, self._latest))
        return now != before and all(isinstance(v, _Kind) for _, v in now ^ before)

    def _warn(self, described: dict[str, str], updated: bool) -> None:
        changes = [
            f"{k} was {self._latest.get(k, 'absent')}, now {v}"
            for k, v in described.items()
            if self._latest.get(k) != v
        ]
        changes += [f"{k} is gone" for k in self._latest if k not in described]
        if updated:
            changes.append("a captured array or value was changed: pass it as an argument")
        filename, _, line = user_line(_getframe(1)).rpartition(":")
        warnings.warn_explicit(
            f"jit: `{self.name}` has been traced {self._traces} times; since the last time"
            f" {'; '.join(changes) or 'something captured changed'}. Values that a"
            " trace looks at are static: pass those that change as tensors, and keep shapes fixed.",
            RetraceWarning,
            filename,
            int(line) if line.isdigit() else 0,
        )

    def _described(self, args: tuple, kwargs: dict) -> dict[str, str]:
        """What a trace depends on, by name."""
        try:
            bound = list(inspect.signature(self.function).bind(*args, **kwargs).arguments.items())
        except (TypeError, ValueError):
            bound = [(f"argument {i}", a) for i, a in enumerate(args)] + list(kwargs.items())
        found: dict[str, str] = {}
        stack = bound[::-1]
        while stack:
            name, x = stack.pop()
            parts = pytrees._children(x)
            if isinstance(x, Array):
                found[name] = _Kind(repr(x._aval))
            elif isinstance(x, Moving):
                found[name] = _Kind(f"any {x.kind.__name__}")
            elif is_numpy(x):
                found[name] = _Kind(f"{x.dtype}[{','.join(map(str, x.shape))}]")
            elif parts is not None and parts[1] is not None:
                children, info = parts
                names = info if isinstance(info, tuple) else range(len(children))
                labelled = [(f"{name}[{k!r}]", c) for k, c in zip(names, children, strict=False)]
                stack += labelled[::-1]
            else:
                found[name] = repr(x.value if isinstance(x, Static) else x)[:60]
        found["recording"] = str(mode.recording)
        found["the default float"] = dtypes.default_float().name
        found["the default device"] = str(default_device())
        found["the precision of products"] = get_matmul_precision()
        return found


def _static_places(
    function: Callable[..., Any], nums: tuple[int, ...], names: tuple[str, ...]
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Static positions and names; where the signature is known each implies the other."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return nums, names
    known = [p.name for p in parameters]
    for n in names:
        if n not in known and not any(p.kind is p.VAR_KEYWORD for p in parameters):
            raise DTypeError(f"jit: static_argnames names no parameter, got {n!r} and {known}.")
    variadic = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    for i in nums:
        if not variadic and not -len(known) <= i < len(known):
            raise DTypeError(f"jit: static_argnums names no parameter, got {i} of {len(known)}.")
    if variadic:
        return nums, names
    positions = {i % len(known) for i in nums} | {known.index(n) for n in names if n in known}
    return tuple(sorted(positions)), tuple({*names, *[known[i] for i in positions]})


@briefly
def jit(
    f: Callable[..., Any] | None = None,
    *,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    name: str | None = None,
    memory: int | str | None = None,
) -> Any:
    """`f` compiled: traced once for each structure, shape and dtype of its arguments, as one unit.

    Strings and other objects are static: each value has its own trace. Python numbers that change
    are arguments, but for those whose value the function needs. `static_argnums` and
    `static_argnames` make whole arguments static. Tensors that `f` captures are constants; one that
    is updated later causes another trace, and one that requires a gradient gets it.

    With `memory`, a number of bytes or a text such as "64 MiB", no call allocates more, results
    included, arguments not: values that would not fit are dropped and computed again, with the same
    bits. A `MemoryBudgetError` names the least possible peak if that is more.

    >>> @pb.jit
    ... def energy(x):
    ...     return (x * x).sum() / 2
    >>> pb.grad(energy)(pb.tensor([1.0, 2.0]))
    tensor([1., 2.], float32, cpu)
    """
    budget = None if memory is None else nbytes_of(memory, "jit", "memory")
    if f is None:
        return lambda function: Jitted(function, static_argnums, static_argnames, name, budget)
    if not callable(f):
        raise DTypeError(f"jit: expected a function, got {type(f).__name__}.")
    return Jitted(f, static_argnums, static_argnames, name, budget)
