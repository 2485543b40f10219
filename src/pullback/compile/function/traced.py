"""Tracing a function for compilation: its graph, its arguments and results, what it captures."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from typing import Any
from weakref import ref

import numpy as np

from pullback.autodiff.reverse import ancestors
from pullback.compile.function.derivatives import Flat, lifted
from pullback.compile.function.snapshots import Snapshot, is_shared
from pullback.core import pytrees
from pullback.core.captures import Captures
from pullback.core.collector import rare_collector
from pullback.core.errors import PullbackError, TraceError
from pullback.ir import convert
from pullback.ir.array import LEAF, Array, Node, make, next_order
from pullback.ir.convert import as_array, is_numpy
from pullback.ir.graph import Var
from pullback.ir.numbers import Moving, NeedsValue, Number
from pullback.ir.tracing import Recording, Static, line_of_error, recorded

__all__ = ["Traced", "first"]


class Traced:
    """The result of tracing a function: its graph, and how arrays get in and out of it.

    Arrays that the function captured and that are tracked, or in shared memory, are `lifted` to
    inputs after the arguments; others are constants, and `watched`. Of memory that others may write
    to there are `snapshots`, where the trace may depend on its contents. `written` pairs arguments
    that were updated in place with the outputs that hold their new contents. `made` are constants
    that the function computed itself, perhaps from what it captured; `looked` says whether it took
    numbers out of arrays.
    """

    @rare_collector()
    def __init__(self, function: Callable[..., Any], name: str, args: tuple, kwargs: dict):
        began = time.perf_counter()
        self.order = next_order()
        known = [x for x in Captures(function, _is_concrete).arrays if isinstance(x, Array)]
        before = [(x, x._buf, x._aval, x._node) for x in known]
        recording = Recording(name)
        leaves, structure = pytrees.flatten((args, kwargs))
        try:
            outputs = recorded(recording, self._record, recording, function, leaves, structure)
        except PullbackError as error:
            _locate(error, name)
            raise
        recording.outputs = outputs
        self._keep(recording)
        for x, *was in before:
            if x._buf is not was[0]:
                _refuse_update(recording, x, was)
        self._watch(Captures(function, _is_concrete))
        self.looked = recording.looked
        self._look_at(recording.read)
        self.graph.verify()
        avals = [v.aval for v in recording.inputs]
        self.flat = Flat(name, self.flatten, avals, self.lifted, [v.aval for v in outputs])
        self.seconds = time.perf_counter() - began

    def _record(
        self, recording: Recording, function: Callable[..., Any], leaves: list, structure: Any
    ) -> list[Var]:
        """Run the function on traced arrays; `flatten` then runs it on any of these types."""
        is_array = [isinstance(x, (Array, Moving)) or is_numpy(x) for x in leaves]
        given = [_array_of(x) for x, here in zip(leaves, is_array, strict=True) if here]
        numbers = [(i, x) for i, x in enumerate(leaves) if isinstance(x, Moving)]
        rest = [_unwrapped(x) for x, here in zip(leaves, is_array, strict=True) if not here]

        def run(arrays: Sequence[Any]) -> tuple[list[Any], pytrees.Structure]:
            moving, fixed = iter(arrays), iter(rest)
            flat = [next(moving) if here else next(fixed) for here in is_array]
            needed: set[int] = set()
            for i, x in numbers:
                flat[i] = Number(x.kind, flat[i], frozenset([x.place]), needed)
            args, kwargs = pytrees.unflatten(structure, flat)
            found = pytrees.flatten(function(*args, **kwargs))
            for x in found[0]:
                if type(x) is Number:
                    raise x.value_needed()
            if needed:  # and the function went on, with another exception perhaps
                raise NeedsValue(frozenset(needed))
            return found

        def flatten(*arrays: Any) -> list[Any]:
            own = [make(a._buf, a._aval, a._node) for a in arrays]
            outs = [x for x in run(own)[0] if isinstance(x, Array)]
            return outs + [own[i] for i, _ in self.written]

        self.flatten = flatten
        recording.read.clear()  # the arguments are given anew at each call
        arrays = [recording.add_input(x._aval) for x in given]
        results, result_structure = run(arrays)
        outputs = [recording.capture(x) for x in results if isinstance(x, Array)]
        self.build = _builder(result_structure, results)
        results.clear()  # from here on a captured array that is alive is somebody else's
        self.written: list[tuple[int, int]] = []
        for i, array in enumerate(arrays):
            if array._buf is not recording.inputs[i]:
                self.written.append((i, len(outputs)))
                outputs.append(recording.capture(array))
        return outputs

    def _keep(self, recording: Recording) -> None:
        """Sort the captured arrays into inputs and constants; refuse those that were changed."""
        self.watched: list[tuple[ref[Any], Any, Any]] = []
        self.lifted: list[Any] = []
        self.made: list[Any] = []
        numbers = {id(x._buf) for x in list(convert._scalars.values())}
        for var in recording.constants:
            buf, av, node = var.constant
            _refuse_updates(recording, var)
            alive = [x for r in recording.handles[var.number] if (x := r()) is not None]
            if node is not None and self._outside(node, recording):
                self.lifted.append(alive[0] if alive else make(buf, av, node))
            elif id(buf) in numbers:
                continue
            elif is_shared(buf, av):
                self.lifted.append(alive[0] if alive else make(buf, av))
            elif not alive:
                self.made.append(make(buf, av))
            else:
                self.watched += [(ref(x), buf, x._node) for x in alive]
        self.graph = lifted(recording, self.lifted, len(recording.inputs))

    def _watch(self, captures: Captures) -> None:
        """Notice later changes of what the function can reach, seen by an operation or not."""
        self.captures = captures
        known = {id(x) for x in self.lifted} | {id(r()) for r, _, _ in self.watched}
        for x in captures.arrays:
            if isinstance(x, Array) and id(x) not in known:
                self.watched.append((ref(x), x._buf, x._node))

    def _look_at(self, read: Sequence[Any]) -> None:
        """Keep the contents of memory that others may write to, and that the trace may depend on.

        The function may have computed constants from it, or looked at its numbers.
        """
        inputs = {id(x) for x in self.lifted}
        shared = [
            x
            for x in (*self.captures.arrays, *self.lifted)
            if isinstance(x, Array) and is_shared(x._buf, x._aval)
        ]
        arrays = [x for x in self.captures.arrays if isinstance(x, np.ndarray)]
        found = {id(x): x for x in (*arrays, *read, *shared)}
        self.snapshots: list[Snapshot] = []
        self.suspected: list[Snapshot] = []  # of inputs: to be trusted if constants do not change
        for x in found.values():
            snapshot = Snapshot.of(x)
            if snapshot is not None:
                (self.suspected if id(x) in inputs else self.snapshots).append(snapshot)

    def _outside(self, node: Node, recording: Recording) -> bool:
        """Whether a captured array is tracked by somebody outside of the function."""
        if node.order < self.order:
            return True
        if any(n.op is LEAF and n.order < self.order for n in ancestors([node])):
            raise TraceError(
                f"jit: `{recording.name}` computes {node.name} of a captured tensor that requires a"
                " gradient, without any of its arguments, and that would be done only once."
                " Pass the tensor as an argument."
            )
        return False


def _locate(error: PullbackError, name: str) -> None:
    """Add the line of the traced function to the message of an error."""
    line = line_of_error(error.__traceback__)
    text = str(error)
    if line and line not in text:
        error.args = (f"{text} (At {line}, while `{name}` was traced.)",)


def _refuse_updates(recording: Recording, var: Var) -> None:
    """Raise if a captured array outlives the function and was updated by it."""
    buf = var.constant[0]
    known = recording.handles[var.number]
    if all(x is None or x._buf is buf for x in [r() for r in known]):
        return
    gc.collect()  # a reference cycle may have kept an array of the function's own
    for array in [x for r in known if (x := r()) is not None and x._buf is not buf]:
        _refuse_update(recording, array, var.constant)


def _refuse_update(recording: Recording, array: Array, was: Sequence[Any]) -> None:
    """Undo an update of a captured array, and raise."""
    made = f", {recording.origin(array._buf)}" if isinstance(array._buf, Var) else ""
    array._buf, array._aval, array._node = was
    raise TraceError(
        f"jit: `{recording.name}` updates a captured tensor in place, got {array._aval}{made}."
        " Pass it as an argument, or return the new value and assign it outside."
    )


def _is_concrete(x: Any) -> bool:
    if isinstance(x, (np.ndarray, np.generic)):
        return True
    return isinstance(x, Array) and not x._aval.is_symbolic


def _array_of(leaf: Any) -> Any:
    return leaf.array if isinstance(leaf, Moving) else as_array(leaf, "jit")


def _unwrapped(leaf: Any) -> Any:
    return leaf.value if isinstance(leaf, Static) else leaf


MOST_BRACKETS = 50  # inside of each other: Python's parser takes 200 at most


def _builder(structure: pytrees.Structure, leaves: Sequence[Any]) -> Callable[[list[Any]], Any]:
    """The function that puts output arrays into the place that the arrays among `leaves` had."""
    if structure is pytrees.LEAF and isinstance(leaves[0], Array):
        return first
    kept: list[Any] = []
    rest = iter(leaves)
    numbers = iter(range(len(leaves)))

    def constant(value: Any) -> str:
        kept.append(value)
        return f"kept[{len(kept) - 1}]"

    def expression(s: pytrees.Structure, depth: int = 0) -> str:
        if s is pytrees.LEAF:
            leaf = next(rest)
            return f"o[{next(numbers)}]" if isinstance(leaf, Array) else constant(leaf)
        if depth == MOST_BRACKETS:
            inside = [expression(pytrees.LEAF) for _ in range(s.leaves)]
            return f"unflatten({constant(s)}, [{', '.join(inside)}])"
        children = [expression(c, depth + 1) for c in s.children]
        listed = "".join(f"{c}, " for c in children)
        if s.kind is tuple:
            return f"({listed})"
        if s.kind is list:
            return f"[{listed}]"
        if s.kind is dict:
            keys: Any = s.info
            pairs = zip(keys, children, strict=True)
            return "{" + ", ".join(f"{constant(k)}: {c}" for k, c in pairs) + "}"
        level = pytrees.Structure(s.kind, s.info, (pytrees.LEAF,) * len(children))
        return f"unflatten({constant(level)}, [{listed}])"

    source = f"lambda o: {expression(structure)}"
    return eval(source, {"kept": kept, "unflatten": pytrees.unflatten})


def first(outputs: list[Any]) -> Any:
    return outputs[0]
