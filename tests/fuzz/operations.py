"""Programs of registered operations: each is called as one of its samples calls it, with other
sizes and with values of the program in place of the sample's.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import warnings
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

import pullback as pb
from fuzz import checks, references, values
from fuzz.case import Case, Failed, Given, Ref, Step, Unwritable, literal, namespace
from pullback.core import pytrees
from pullback.core.dtypes import as_dtype
from pullback.core.errors import PullbackError
from pullback.ir.lowering import Elementwise, Fold, View
from pullback.ir.op import REGISTRY, Op
from pullback.ir.samples import Draw

__all__ = ["OperationCase", "draw"]

MOST_RESULT = 400_000  # elements
KNOWN = 0.08  # of new operands: arrays of one number, which a compiler knows
FORWARD = ("jit_is_near_eager", "threads_change_nothing")
GRADIENT = (
    "gradient_in_jit_gives_the_bits_of_eager",
    "gradient_in_jit_is_near_eager",
    "gradient_through_jit_is_near_eager",
    "gradient_threads_change_nothing",
    "gradient_runs",
    "backward_is_near_grad",
)
DOUBLE = ("gradient_agrees_with_differences", "forward_agrees_with_reverse")
# Compiled in eager mode too, with passes that round otherwise.
ROUNDED = ("nn.rnn", "nn.lstm", "nn.gru")
# Work that grows with a sample's sizes beyond what a case may take.
HEAVY = ("nn.ctc_loss",)


@cache
def keys() -> tuple[str, ...]:
    return tuple(sorted(k for k in REGISTRY if k not in HEAVY))


@dataclass
class Call:
    """A call of an operation on names of a program."""

    key: str
    args: tuple
    kwargs: dict[str, Any]
    outputs: int | None  # None: the result is one array


@dataclass
class OperationCase(Case):
    """A program of operations; each result is what the operation's oracle says."""

    def run_check(self, name: str) -> None:
        if name != "oracles_agree":
            return super().run_check(name)
        names = dict(zip([g.name for g in self.given], self.tensors(), strict=True))
        scope = namespace() | names
        for step in self.steps:
            exec(step.text, scope)
            arrays = {n: scope[n].numpy() for n in (*step.reads, *step.makes)}
            try:
                oracle_agrees(step, arrays)
            except checks.Finding as error:
                raise Failed(self, name, error) from error
        return None

    def call(self, check: str) -> str:
        if check != "oracles_agree":
            return super().call(check)
        names = ", ".join(g.name for g in self.given)
        return f"print(program({names}))  # the message above says what the oracle gives"


# -- oracles ---------------------------------------------------------------------------------------


def oracle_of(key: str) -> Any:
    entry = REGISTRY[key]
    if isinstance(entry.oracle, str):
        module, _, name = entry.oracle.rpartition(".")
        return getattr(import_module(module), name)
    return entry.oracle


def oracle_agrees(step: Step, arrays: dict[str, np.ndarray]) -> None:
    """Raise unless the results of one call are those of its oracle on the same arrays.

    How far results may lie apart is measured: by the oracle on arrays that are off by a rounding.
    """
    call: Call = step.call
    if not references.knows(call.key, *filled(call, arrays)):
        return
    form = getattr(REGISTRY[call.key], "lowering", None)
    if form is None and any(a.size == 0 for a in arrays.values()):
        return  # results of NumPy and SciPy often have one axis then
    if not isinstance(form, (Elementwise, Fold, View)) and not all(map(tame, arrays.values())):
        return  # other oracles say nothing of infinities, and of integers that floats do not hold
    if any(a.dtype.kind == "c" and not tame(a) for a in arrays.values()):
        return  # NumPy has other infinities and NaN in the parts of complex numbers
    # Of small integers NumPy might compute in float16, and some oracles of integers in integers.
    # But those may be positions.
    pointwise = isinstance(form, Elementwise)
    of_integers = all(arrays[n].dtype.kind in "biu" for n in step.reads)
    raised_to_float = any(arrays[n].dtype.kind not in "biu" for n in step.makes)
    if not raised_to_float or not (of_integers or pointwise):
        agrees(step, arrays, {})
    elif pointwise:
        own = arrays[step.makes[0]].dtype.type
        narrow = call.key in references.NARROW
        integers = [n for n in step.reads if arrays[n].dtype.kind in "biu"]
        agrees(step, arrays, dict.fromkeys(integers, own if narrow else np.float64))
    else:
        wide = {
            n: {"b": bool, "u": np.uint64}.get(arrays[n].dtype.kind, np.int64) for n in step.reads
        }
        for positions in subsets(step.reads):  # those that are no numbers
            numbers = {
                n: np.float64 for n in step.reads if n not in positions and wide[n] is not bool
            }
            with contextlib.suppress(checks.Finding):
                return agrees(step, arrays, wide | numbers)
        agrees(step, arrays, wide)
    return None


def subsets(names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Some of the names, the fewest first; all of them are left out."""
    for count in range(len(names)):
        yield from itertools.combinations(names, count)


def filled(call: Call, arrays: dict[str, np.ndarray]) -> tuple[tuple, dict[str, Any]]:
    """The operands of a call, with arrays in place of names."""
    return pytrees.map_tree(
        lambda x: arrays[x.name] if isinstance(x, Ref) else x, (call.args, call.kwargs)
    )


def agrees(step: Step, arrays: dict[str, np.ndarray], widened: dict[str, type]) -> None:
    """`oracle_agrees`, with other dtypes for some arrays."""
    call: Call = step.call
    oracle, rng = oracle_of(call.key), np.random.default_rng(0)
    kinds = [pb.tensor(np.zeros((), a.dtype)).dtype for a in arrays.values()]
    epsilons = [float(pb.finfo(k.real).eps) for k in kinds if k.is_inexact]
    # NumPy may add up one after the other.
    terms = max((a.size for a in arrays.values()), default=0)
    epsilon = max(epsilons, default=0.0) * REGISTRY[call.key].tolerance * (1 + terms**0.5 / 16)

    def results(moved: bool) -> list[np.ndarray] | None:
        def value(x: Any) -> Any:
            if not isinstance(x, Ref):
                return x
            a = arrays[x.name] if call.key in references.NARROW else checks.wide(arrays[x.name])
            a = a.astype(widened.get(x.name, a.dtype))
            if moved and a.dtype.kind in "fc":
                a = np.asarray(a * (1 + epsilon * rng.choice((-1.0, 1.0), a.shape)))
            return a

        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            args, kwargs = pytrees.map_tree(value, (call.args, call.kwargs))
            try:
                found = oracle(*args, **kwargs)
            except Exception:  # the oracle knows only what samples need
                return None
            many = found if isinstance(found, (tuple, list)) else [found]
            return determined(np, call.key, [checks.wide(np.asarray(y)) for y in many])

    plain = results(False)
    if plain is None:
        return
    spreads = [np.zeros(y.shape) for y in plain]
    for _ in range(3):
        moved = results(True)
        if moved is None or [y.shape for y in moved] != [y.shape for y in plain]:
            return
        with np.errstate(all="ignore"):
            for i, (a, b) in enumerate(zip(moved, plain, strict=True)):
                apart = a != b if b.dtype.kind in "biu" else np.abs(a - b)
                spreads[i] = np.maximum(spreads[i], np.where(np.isnan(apart), np.inf, apart))
    primitive = isinstance(REGISTRY[call.key], Op)
    what = f"{call.key} by its oracle"
    got = determined(np, call.key, [arrays[n] for n in step.makes])
    try:
        for a, y, spread in zip(got, plain, spreads, strict=False):
            compare(what, a, y, spread, epsilon, primitive)
    except checks.Finding:
        if primitive:
            raise
        inner = rounding_inside(step, arrays)  # of a composite, which costs more to know
        if inner is None:
            return
        for a, y, spread, more in zip(got, plain, spreads, inner, strict=False):
            compare(what, a, y, np.maximum(spread, more), epsilon, False)


def determined(xp: Any, key: str, results: list[Any]) -> list[Any]:
    """What no choice of signs and bases changes: results themselves, for most operations."""
    rule = REGISTRY[key].determined
    return results if rule is None else rule(xp, results)


def rounding_inside(step: Step, arrays: dict[str, np.ndarray]) -> list[np.ndarray] | None:
    """How far results move with the rounding of the operations that a composite is made of."""
    names = ", ".join(step.reads)
    right = step.text.partition(" = ")[2]
    made = eval(f"lambda {names}: tensors_of({right})", namespace())
    try:
        return checks.spread_of(
            lambda *xs: determined(pb, step.call.key, made(*xs)),
            [pb.tensor(arrays[n]) for n in step.reads],
        )
    except pb.DTypeError:  # its shapes depend on values
        return None


def tame(a: np.ndarray) -> bool:
    """Whether the numbers of an array are finite and of ordinary size."""
    most = 1e2 if a.dtype == np.float16 else 1e5  # squares and sums of them have to fit
    a = a.astype(np.complex128 if a.dtype.kind == "c" else np.float64)
    with np.errstate(all="ignore"):
        return bool(np.all(np.abs(a) < most))


def compare(
    what: str, got: np.ndarray, y: np.ndarray, spread: np.ndarray, epsilon: float, exact: bool
) -> None:
    """`near`, and if `exact` the same infinity or NaN where the oracle has no finite number."""
    if got.dtype.kind in "biu" or y.dtype.kind in "biu":
        return checks.near(what, got, y.astype(got.dtype), spread, epsilon)
    with np.errstate(all="ignore"):
        y = checks.wide(y.astype(got.dtype))
    checks.near(what, got, y, spread, epsilon)
    if got.dtype.kind == "c" or not exact:
        return None
    largest = float(pb.finfo(pb.tensor(np.zeros((), got.dtype)).dtype).max)
    with np.errstate(all="ignore"):
        x = checks.wide(got)
        wrong = np.isnan(y) & ~np.isnan(x) & np.isfinite(x)
        wrong |= np.isfinite(y) & ~np.isfinite(x) & (np.abs(y) < largest / 8) & (spread < largest)
        wrong |= np.isinf(y) & np.isfinite(x) & (np.abs(x) < largest / 8)
    if wrong.any():
        raise checks.Finding(f"{what}: {checks.described(got, y, wrong)}")
    return None


# -- drawing ---------------------------------------------------------------------------------------


def is_array(x: Any) -> bool:
    return isinstance(x, np.ndarray)


def renamed(x: Any, sizes: dict[int, int]) -> Any:
    """Static arguments with sizes of the sample replaced by those of the program."""
    if type(x) is int:
        return sizes.get(x, x) if x > 1 else x
    if type(x) in (tuple, list):
        return type(x)(renamed(v, sizes) for v in x)
    return x


class Drawing:
    """A program while it is drawn: every step has run by the time the next one is."""

    def __init__(self, seed: int):
        self.rng = np.random.default_rng([seed, zlib.crc32(b"operations")])
        self.seed = seed
        self.dtype = values.dtype(self.rng)
        self.special = self.rng.random() < 0.25
        self.given: list[Given] = []
        self.steps: list[Step] = []
        self.scope = namespace()
        self.values: dict[str, np.ndarray] = {}
        self.traceable = True
        self.numbers = itertools.count()  # of names
        self.give(values.array(self.rng, self.dtype, values.shape(self.rng)))

    def give(self, array: np.ndarray) -> str:
        """A new array of the program."""
        rng = self.rng
        if self.special and rng.random() < 0.6:
            array = values.sprinkle(rng, array)
        if array.ndim and array.shape[0] > 1 and rng.random() < 0.08:
            array = np.array(np.broadcast_to(array[:1], array.shape))
        given = Given(f"x{next(self.numbers)}", array)
        wanted = str(rng.choice(values.LAYOUTS)) if rng.random() < 0.5 else "plain"
        given.layout = wanted if given.allows(wanted) else "plain"
        self.scope[given.name] = given.tensor()
        self.given.append(given)
        self.values[given.name] = array
        return given.name

    def operand(self, like: np.ndarray, shape: tuple[int, ...], reuse: float) -> str:
        """A value of the program of that shape and kind, or a new one."""
        fits = [n for n, a in self.values.items() if a.shape == shape and a.dtype == like.dtype]
        if fits and like.dtype.kind not in "iu" and self.rng.random() < reuse:
            return str(self.rng.choice(fits))
        if math.prod(shape) > MOST_RESULT:
            raise Unwritable("too large")
        array = values.fitting(self.rng, like, shape)
        if array.dtype == np.int64 and self.dtype.is_integer and self.rng.random() < 0.5:
            array = (np.abs(array) if self.dtype.kind == "u" else array).astype(self.dtype.numpy)
        if array.size and self.rng.random() < KNOWN:
            number = array.reshape(-1)[0].item()
            self.add("full", (shape, number), {"dtype": as_dtype(array.dtype)})
            return self.steps[-1].makes[0]
        return self.give(array)

    def step(self) -> None:
        """Add a call, if the operation takes what was drawn for it."""
        rng = self.rng
        key = str(rng.choice(keys()))
        before = len(self.given)
        try:
            self.add(key, *self.drawn_call(key))
        except (Unwritable, PullbackError, MemoryError, OverflowError):
            for g in self.given[before:]:
                del self.values[g.name], self.scope[g.name]
            del self.given[before:]

    def drawn_call(self, key: str) -> tuple[tuple, dict[str, Any]]:
        rng, entry = self.rng, REGISTRY[key]
        with np.errstate(all="ignore"):
            kind = self.dtype.numpy if self.dtype.is_inexact else np.dtype(np.int64)
            samples = entry.samples(Draw(int(rng.integers(2**31)), kind))
        name = str(rng.choice(list(self.values)[-4:]))
        value = self.values[name]
        if not samples:
            raise Unwritable("no sample of this dtype")
        matching = []
        for s in samples:
            arrays = [x for x in pytrees.leaves((s.args, s.kwargs)) if is_array(x)]
            if arrays and arrays[0].ndim == value.ndim:
                matching.append(s)
        sample = matching[rng.integers(len(matching))] if matching else samples[
            rng.integers(len(samples))
        ]  # fmt: skip
        leaves, structure = pytrees.flatten((sample.args, sample.kwargs))
        if isinstance(entry, Op) and isinstance(entry.lowering, Elementwise) and entry.unbroadcast:
            full = self.elementwise_operands(leaves, name)
        else:
            full = self.operands(leaves, name if matching else None)
        args, kwargs = pytrees.unflatten(structure, full)
        return args, dict(kwargs)

    def elementwise_operands(self, leaves: list[Any], name: str) -> list[Any]:
        """The value, beside others that broadcast with it."""
        rng, shape = self.rng, self.values[name].shape
        place = int(rng.integers(len(leaves)))
        full: list[Any] = []
        for i, x in enumerate(leaves):
            if not is_array(x):
                full.append(x)
                continue
            same = x.dtype.kind == self.values[name].dtype.kind
            if i == place and (same or rng.random() < 0.5):
                full.append(Ref(name))
                continue
            if rng.random() < 0.1 and x.size and x.dtype.kind in "fi":
                full.append(x.reshape(-1)[0].item())  # a Python number
                continue
            other = tuple(1 if rng.random() < 0.2 else n for n in shape)
            other = other[int(rng.integers(0, len(shape) + 1)) :] if rng.random() < 0.3 else other
            full.append(Ref(self.operand(x, other, 0.5)))
        return full

    def operands(self, leaves: list[Any], name: str | None) -> list[Any]:
        """The value in place of the first array; the others have sizes that go with it."""
        rng, sizes = self.rng, {}
        full = list(leaves)
        places = [i for i, x in enumerate(leaves) if is_array(x)]
        if name is not None and places:
            first = leaves[places[0]]
            sizes = dict(zip(first.shape, self.values[name].shape, strict=True))
            if first.dtype.kind == self.values[name].dtype.kind:
                full[places[0]] = Ref(name)
                places = places[1:]
        elif rng.random() < 0.7:
            small = sum(leaves[i].ndim for i in places) > 4
            for i in places:
                for n in leaves[i].shape:
                    sizes.setdefault(n, values.size(rng, 17 if small else 257) or n)
        for i in places:
            shape = tuple(sizes.get(n, n) if n > 1 else n for n in leaves[i].shape)
            full[i] = Ref(self.operand(leaves[i], shape, 0.6))
        if rng.random() < 0.5:
            full = [renamed(x, sizes) for x in full]
        return full

    def add(self, key: str, args: tuple, kwargs: dict[str, Any]) -> None:
        """Run the call; keep it if the result is worth going on with."""
        rng = self.rng
        if not references.drawable(key, *filled(Call(key, args, kwargs, None), self.values)):
            raise Unwritable("shapes depend on values, or what is between is large")
        written = [literal(a) for a in args] + [f"{k}={literal(v)}" for k, v in kwargs.items()]
        text = f"pb.{key}({', '.join(written)})"
        result = eval(text, self.scope)
        arrays = checks.tensors_of(result)
        single = isinstance(result, pb.Tensor)
        if not arrays or len(arrays) > 8 or max(math.prod(x.shape) for x in arrays) > MOST_RESULT:
            raise Unwritable("too large a result")
        found = [x.numpy() for x in arrays]
        for a in found:
            if a.dtype.kind not in "biu" and a.size and not self.special:
                with np.errstate(all="ignore"):
                    tame = np.isfinite(a) & (np.abs(a) < 1e4)
                if np.mean(tame) < 0.7 and rng.random() < 0.9:
                    raise Unwritable("infinite")
        reads = tuple(dict.fromkeys(x.name for x in pytrees.leaves((args, kwargs))
                                    if isinstance(x, Ref)))  # fmt: skip
        if not self.traces(text, reads):
            if rng.random() < 0.85:
                raise Unwritable("depends on values")
            self.traceable = False
        makes = tuple(f"v{next(self.numbers)}" for _ in arrays)
        left = makes[0] if single else "".join(f"{m}, " for m in makes).strip()
        right = text if single else f"tensors_of({text})"
        call = Call(key, args, kwargs, None if single else len(arrays))
        self.steps.append(Step(f"{left} = {right}", makes, reads, call))
        for name, x, a in zip(makes, arrays, found, strict=True):
            self.scope[name], self.values[name] = x, np.array(a)

    def traces(self, text: str, reads: tuple[str, ...]) -> bool:
        """Whether a call can be compiled: its shapes do not depend on values."""
        names = ", ".join(reads)
        function = eval(f"lambda {names}: tensors_of({text})", self.scope)
        try:
            pb.trace(function)(*[self.scope[n] for n in reads])
        except pb.DTypeError as error:
            if "traced" in str(error) or "depends on values" in str(error):
                return False
            raise
        return True


def draw(seed: int) -> Case:
    """The program of a seed."""
    drawing = Drawing(seed)
    rng = drawing.rng
    wanted = int(rng.integers(3, 13))
    for _ in range(6 * wanted):
        if len(drawing.steps) == wanted:
            break
        drawing.step()
    steps = drawing.steps
    read = {n for s in steps for n in s.reads}
    made = [n for s in steps for n in s.makes]
    returns = [n for n in made if n not in read or rng.random() < 0.1]
    given = [g for g in drawing.given if g.name in read]
    case = OperationCase("operations", seed, given, steps, tuple(returns), (), drawing.values)
    return replace(case, checks=chosen_checks(rng, drawing, case))


def chosen_checks(rng: np.random.Generator, drawing: Drawing, case: Case) -> tuple[str, ...]:
    """The checks of a program: those that cost little, and some of the others."""
    found = ["runs", "oracles_agree"]
    if not drawing.traceable or not case.steps:
        return tuple(found)
    exact = not any(s.call.key.startswith(ROUNDED) for s in case.steps)
    found.append("jit_gives_the_bits_of_eager" if exact else "jit_is_near_eager")
    found += [c for c in FORWARD if rng.random() < 0.35 and not (drawing.special and "near" in c)]
    used = [s.call.key for s in case.steps]
    sound = all(REGISTRY[k].differentiable and k not in references.KINKED for k in used)
    if any(g.array.dtype.kind not in "biu" for g in case.given):
        # A fused composite adds up the derivatives of what it is given several times in its order.
        whole = any(s.call.key.startswith("nn.") for s in case.steps)
        wanted = [c for c in GRADIENT if rng.random() < 0.3 and not (whole and "bits" in c)]
        found += [c for c in wanted if not (drawing.special and "near" in c)]
        wide = all(drawing.values[n].dtype.kind in "biu" or drawing.values[n].dtype.itemsize >= 8
                   for s in case.steps for n in (*s.makes, *s.reads))  # fmt: skip
        if wide and sound and not drawing.special:
            found += [c for c in DOUBLE if rng.random() < 0.5]
    return tuple(found)
