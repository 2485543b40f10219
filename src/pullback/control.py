"""Control flow that can be traced: `cond`, `scan`, `fori_loop`, `while_loop`, over trees of arrays.

On concrete arrays they run in Python, step by step, like any other code. When something they read
is traced, the whole construct becomes one equation of the graph; derivatives of any order are
equations of the same kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from pullback.autodiff.branches import staged_cond
from pullback.autodiff.reverse import with_recording
from pullback.autodiff.rows import rows_of
from pullback.autodiff.scans import staged_scan
from pullback.autodiff.whiles import staged_while
from pullback.autodiff.workspace import Workspace
from pullback.core import pytrees
from pullback.core.avals import Aval, symbolic
from pullback.core.dtypes import bool_, int64
from pullback.core.errors import DTypeError, PullbackError, ShapeError, briefly, expect_function
from pullback.ir.array import Array
from pullback.ir.control import stacked
from pullback.ir.convert import as_array
from pullback.ir.op import REGISTRY, another, own_handles
from pullback.loop_units import compiled_loop
from pullback.ops.requirements import require

__all__ = ["cond", "fori_loop", "scan", "while_loop"]


# -- trees -----------------------------------------------------------------------------------------


def _arrays(name: str, tree: Any) -> tuple[list[Any], pytrees.Structure]:
    """The leaves of a tree as arrays, and its structure."""
    leaves, structure = pytrees.flatten(tree)
    return [as_array(leaf, name) for leaf in leaves], structure


def _is_traced(arrays: Sequence[Array]) -> bool:
    return any(a._aval.is_symbolic for a in arrays)


class _Carry:
    """What a loop carries from step to step: arrays that keep structure, shape and dtype."""

    def __init__(self, name: str, tree: Any):
        self.name = name
        self.init, self.structure = _arrays(name, tree)
        self.avals = [a._aval for a in self.init]

    def tree(self, arrays: Sequence[Any]) -> Any:
        """The arrays as a tree of handles of its own, which a function may update in place."""
        return pytrees.unflatten(self.structure, [another(a) for a in arrays])

    def checked(self, tree: Any) -> list[Any]:
        """The arrays of the next carry; Python numbers take the dtype of what they replace."""
        leaves, structure = pytrees.flatten(tree)
        if structure != self.structure:
            raise ShapeError(
                f"{self.name}: the carry must keep its structure:"
                f" {pytrees.difference(self.structure, structure, 'carry')}."
            )
        found = []
        for i, (leaf, av) in enumerate(zip(leaves, self.avals, strict=True)):
            x = as_array(leaf, self.name, dtype=None if isinstance(leaf, Array) else av.dtype)
            if x._aval.shape != av.shape:
                raise ShapeError(
                    f"{self.name}: {self._path(i)} must keep its shape, {av.shape},"
                    f" got {x._aval.shape} after a step."
                )
            if x._aval.dtype is not av.dtype:
                raise DTypeError(
                    f"{self.name}: {self._path(i)} must keep its dtype, {av.dtype.name},"
                    f" got {x._aval.dtype.name} after a step. Cast one of them with astype."
                )
            found.append(another(x))
        return found

    def _path(self, i: int) -> str:
        return list(pytrees.paths(self.structure, "carry"))[i]


# -- cond ------------------------------------------------------------------------------------------


@briefly
def cond(
    pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], *operands: Any
) -> Any:
    """`true_fn(*operands)` if `pred` holds, else `false_fn(*operands)`; the other one is not run.

    Where `pred` is traced, both must return trees of the same structure, shapes and dtypes.

    >>> pb.cond(pb.tensor(2.0) > 1.0, pb.sin, pb.cos, pb.tensor(0.0))
    tensor(0., float32, cpu)
    """
    expect_function("cond", true_fn, "true_fn must be")
    expect_function("cond", false_fn, "false_fn must be")
    pred = _predicate("cond", pred)
    if not pred._aval.is_symbolic:
        chosen = true_fn if pred.item() else false_fn
        found, structure = _arrays("cond", chosen(*own_handles(operands)))
        return pytrees.unflatten(structure, [another(x) for x in found])
    arrays, structure = _arrays("cond", operands)
    structures: list[pytrees.Structure] = []

    def flat(f: Callable[..., Any]) -> Callable[[list[Any]], list[Any]]:
        def branch(xs: list[Any]) -> list[Any]:
            own = pytrees.unflatten(structure, [another(x) for x in xs])
            found, result = _arrays("cond", f(*own))
            structures.append(result)
            if structures[0] != result:
                raise ShapeError(
                    "cond: both functions must return the same structure,"
                    f" got {structures[0]} and {result}."
                )
            return found

        return branch

    outs = staged_cond(pred, flat(true_fn), flat(false_fn), arrays, _check_branches(structures))
    return pytrees.unflatten(structures[0], [another(x) for x in outs])


def _predicate(name: str, value: Any) -> Any:
    pred = as_array(value, name)
    if pred._aval.shape != ():
        raise ShapeError(f"{name}: the predicate must be 0-d, got shape {pred._aval.shape}.")
    if pred._aval.dtype is not bool_:
        raise DTypeError(
            f"{name}: the predicate must be a bool, got {pred._aval.dtype.name}."
            " Compare it, as in x > 0."
        )
    return pred


def _check_branches(
    structures: list[pytrees.Structure],
) -> Callable[[Sequence[Array], Sequence[Array]], None]:
    def check(then: Sequence[Array], otherwise: Sequence[Array]) -> None:
        for i, (a, b) in enumerate(zip(then, otherwise, strict=True)):
            path = list(pytrees.paths(structures[0], "result"))[i]
            if a._aval.shape != b._aval.shape:
                raise ShapeError(
                    f"cond: both functions must return one shape at {path},"
                    f" got {a._aval.shape} and {b._aval.shape}."
                )
            if a._aval.dtype is not b._aval.dtype:
                raise DTypeError(
                    f"cond: both functions must return one dtype at {path},"
                    f" got {a._aval.dtype.name} and {b._aval.dtype.name}."
                )

    return check


# -- scan ------------------------------------------------------------------------------------------


@briefly
def scan(
    f: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any,
    length: int | None = None,
    reverse: bool = False,
    recompute: bool = False,
) -> tuple[Any, Any]:
    """The last carry and the stacked ys of `carry, y = f(carry, x)` for each row `x` of `xs`.

    `init`, `xs` and ys are trees; `xs` may be None where `length` is given. With `reverse` the
    last row comes first; the y of a row has the place of that row either way. Derivatives of a
    traced scan read values of its steps, which are kept; with `recompute` they are computed again
    from the carries and rows of each step.

    >>> pb.scan(lambda c, x: (c + x, c * x), pb.tensor(0.0), pb.tensor([1.0, 2.0, 3.0]))
    (tensor(6., float32, cpu), tensor([0., 2., 9.], float32, cpu))
    """
    expect_function("scan", f, "f must be")
    arrays, structure = _arrays("scan", xs)
    steps = _length(arrays, structure, length)
    carry = _Carry("scan", init)
    # a partial function shows what it holds, so that changes of what `f` captures are noticed
    loop = partial(_scan, f, steps=steps, reverse=reverse, recompute=recompute)
    trees = carry.tree(carry.init), pytrees.unflatten(structure, arrays)
    if not _is_traced([*carry.init, *arrays]):
        found = compiled_loop(f, loop, (steps, reverse, recompute), steps, *trees)
        if found is not None:
            return found
    return loop(*trees)


def _scan(
    f: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any,
    steps: int,
    reverse: bool,
    recompute: bool,
) -> tuple[Any, Any]:
    """`scan` of trees of arrays, in Python or as an equation."""
    carry = _Carry("scan", init)
    arrays, structure = _arrays("scan", xs)
    seen: list[pytrees.Structure] = []

    def step(carries: Sequence[Any], rows: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        result = f(carry.tree(carries), pytrees.unflatten(structure, [another(r) for r in rows]))
        if not isinstance(result, tuple) or len(result) != 2:
            raise DTypeError(f"scan: f must return (carry, y), got {type(result).__name__}.")
        ys, y_structure = _arrays("scan", result[1])
        seen[:] = [y_structure]
        return carry.checked(result[0]), [another(y) for y in ys]

    outs = None
    if not _is_traced([*carry.init, *arrays]) or steps == 0:
        outs = _scanned(step, carry.init, arrays, steps, reverse)
    if outs is None:
        outs = staged_scan(step, carry.init, arrays, steps, reverse, _name_of(f), recompute)
    n = len(carry.init)
    return carry.tree(outs[:n]), pytrees.unflatten(seen[0], [another(y) for y in outs[n:]])


def _name_of(f: Callable[..., Any]) -> str:
    return getattr(f, "__name__", "scan")


def _length(arrays: Sequence[Any], structure: pytrees.Structure, length: int | None) -> int:
    """The number of steps, on which `length` and the rows of `xs` must agree."""
    found = None if length is None else _static_int("scan", "length", length)
    if found is not None and found < 0:
        raise ShapeError(f"scan: length must not be negative, got {found}.")
    for path, x in zip(pytrees.paths(structure, "xs"), arrays, strict=True):
        if x._aval.ndim == 0:
            raise ShapeError(f"scan: {path} has no rows to go through, got a 0-d array.")
        n = x._aval.shape[0]
        if found is not None and n != found:
            raise ShapeError(f"scan: {path} must have {found} rows like the rest, got {n}.")
        found = n
    if found is None:
        raise ShapeError("scan: xs holds no arrays and there is no length. Pass length.")
    return found


def _static_int(name: str, what: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise DTypeError(f"{name}: {what} must be an int, got {type(value).__name__}.")
    return int(value)


Step = Callable[[Sequence[Any], Sequence[Any]], tuple[list[Any], list[Any]]]


def _scanned(
    step: Step, init: Sequence[Any], xs: Sequence[Any], length: int, reverse: bool
) -> list[Any] | None:
    """A scan in Python, None if it meets traced values."""
    if length == 0:
        return _no_steps(step, init, xs)
    rows = [rows_of(x) for x in xs]
    carries = list(init)
    columns: list[list[Any]] = []
    for i in reversed(range(length)) if reverse else range(length):
        carries, ys = step(carries, [r[i] for r in rows])
        if _is_traced([*carries, *ys]):
            return None
        columns = columns or [[] for _ in ys]
        for column, y in zip(columns, ys, strict=True):
            column.append(y)
    return carries + [stacked(c, c[0]._aval, reverse) for c in columns]


def _no_steps(step: Step, init: Sequence[Any], xs: Sequence[Any]) -> list[Any]:
    """The results of no steps: what a step would return is traced for its shapes."""
    space = Workspace("scan")
    carries = [space.variable(a._aval, False) for a in init]
    rows = [space.variable(_row_aval(x), False) for x in xs]
    _, ys = step(carries, rows)
    return [*init, *[stacked([], y._aval, False) for y in ys]]


def _row_aval(x: Any) -> Aval:
    av = x._aval
    return symbolic(av.shape[1:], av.dtype, av.device)


# -- loops -----------------------------------------------------------------------------------------


@briefly
def fori_loop(lower: Any, upper: Any, body: Callable[[Any, Any], Any], init: Any) -> Any:
    """The last carry of `carry = body(i, carry)` for `i` from `lower` to `upper - 1`.

    `i` is a 0-d int64 tensor, where the carry is. With known bounds it is a scan, and both modes of
    differentiation work; with traced bounds it is a while loop, which has forward mode only.

    >>> pb.fori_loop(0, 5, lambda i, c: c * 2.0 + i, pb.tensor(1.0))
    tensor(58., float32, cpu)
    """
    bounds = [as_array(b, "fori_loop") for b in (lower, upper)]
    for b in bounds:
        if b._aval.shape != () or not b._aval.dtype.is_integer:
            raise DTypeError(f"fori_loop: the bounds must be integers, got {b._aval}.")
    low, high = (REGISTRY["astype"].function(b, int64) for b in bounds)
    if _is_traced([low, high]):
        last = while_loop(
            lambda state: state[0] < high, lambda s: (s[0] + 1, body(*s)), (low, init)
        )
        return last[1]
    carry = _Carry("fori_loop", init)
    steps = max(high.item() - low.item(), 0)
    if not isinstance(lower, Array) and carry.avals:
        low = low.to_device(carry.avals[0].device)
    state = low, carry.tree(carry.init)
    loop = partial(_counted, body, steps)
    if not _is_traced(carry.init):
        found = compiled_loop(body, loop, ("fori_loop", steps), steps, state)
        if found is not None:
            return found
    return loop(state)


def _counted(body: Callable[[Any, Any], Any], steps: int, state: tuple[Any, Any]) -> Any:
    """The last carry of so many steps from a state, which is a number and a carry."""
    carry = _Carry("fori_loop", state[1])

    def step(state: tuple[Any, Any], _: None) -> tuple[Any, None]:
        i, value = state
        return (i + 1, carry.tree(carry.checked(body(i, value)))), None

    return _scan(step, state, None, steps, False, False)[0][1]


@briefly
def while_loop(
    test: Callable[[Any], Any],
    body: Callable[[Any], Any],
    init: Any,
    max_steps: int | None = None,
) -> Any:
    """The last carry of `while test(carry): carry = body(carry)`.

    A traced while loop can be differentiated in forward mode, and with `max_steps` in reverse mode
    too: it is then a scan of that many steps, of which those after the end of the loop do nothing.
    A loop that needs more than `max_steps` raises an error, compiled or not.

    >>> pb.while_loop(lambda c: c < 100.0, lambda c: c * 2.0, pb.tensor(3.0))
    tensor(192., float32, cpu)
    """
    carry = _Carry("while_loop", init)
    steps = None if max_steps is None else _static_int("while_loop", "max_steps", max_steps)

    def holds(carries: Sequence[Any]) -> Any:
        return _predicate("while_loop", test(carry.tree(carries)))

    def step(carries: Sequence[Any]) -> list[Any]:
        return carry.checked(body(carry.tree(carries)))

    outs = None if _is_traced(carry.init) else _repeated(holds, step, carry.init, steps)
    if outs is None:
        staged = staged_while if steps is None else partial(_bounded, max_steps=steps)
        outs = staged(holds, step, carry.init)
    return carry.tree(outs)


_UNFINISHED = "has not ended after max_steps={} steps. Raise max_steps, or test for less."

Test = Callable[[Sequence[Any]], Any]
Body = Callable[[Sequence[Any]], list[Any]]


def _repeated(
    holds: Test, step: Body, init: Sequence[Any], max_steps: int | None
) -> list[Any] | None:
    """A while loop in Python, None if it meets traced values."""
    carries, count = list(init), 0
    while True:
        go_on = holds(carries)
        if go_on._aval.is_symbolic:
            return None
        if not go_on.item():
            return carries
        if count == max_steps:
            raise PullbackError(f"while_loop: the loop {_UNFINISHED.format(max_steps)}")
        carries = step(carries)
        if _is_traced(carries):
            return None
        count += 1


def _bounded(holds: Test, step: Body, init: Sequence[Any], max_steps: int) -> list[Any]:
    """A traced loop of at most `max_steps` steps; one that is tracked is a scan."""

    def masked(carries: list[Any], rows: list[Any]) -> tuple[list[Any], list[Any]]:
        go_on = holds(carries)
        if not go_on._aval.is_symbolic:
            return step(carries) if go_on.item() else carries, []
        return staged_cond(go_on, step, lambda xs: xs, carries), []

    def counted_step(carries: Sequence[Any]) -> list[Any]:
        return [carries[0] + 1, *step(carries[1:])]

    outs = staged_while(
        lambda carries: (carries[0] < max_steps) & holds(carries[1:]),
        counted_step,
        [as_array(0, "while_loop"), *init],
        instead=lambda: [None, *staged_scan(masked, init, [], max_steps, False, "while_steps")],
    )
    carries = outs[1:]
    if not carries:
        return carries
    ended = REGISTRY["logical_not"].function(with_recording(False, holds, carries))
    last = require(
        carries[0], ended, "while_loop", _UNFINISHED.format(max_steps), "the loop", "PullbackError"
    )
    return [last, *carries[1:]]
