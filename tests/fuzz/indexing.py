"""Indexing and assignment: the same text runs on tensors and on NumPy arrays.

A NumPy array that is read through an index is copied, as a tensor is never a view for its user.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import pullback as pb
from fuzz import checks, values
from fuzz.case import Case, Failed, Given, Step, literal, namespace

__all__ = ["IndexCase", "draw", "index_text"]

CHECKS = (
    "jit_gives_the_bits_of_eager",
    "gradient_in_jit_gives_the_bits_of_eager",
    "jit_is_near_eager",
    "threads_change_nothing",
    "backward_is_near_grad",
    "gradient_agrees_with_differences",
    "forward_agrees_with_reverse",
)
# NumPy's error and ours, by what they have in common.
ERRORS = (IndexError, ValueError, TypeError)


@dataclass
class IndexCase(Case):
    """Steps that read and write through indices, on two arrays libraries alike."""

    def run_check(self, name: str) -> None:
        if name != "numpy_agrees":
            return super().run_check(name)
        try:
            numpy_agrees(self)
        except Exception as error:
            raise Failed(self, name, error) from error
        return None

    def call(self, check: str) -> str:
        if check != "numpy_agrees":
            return super().call(check)
        names = [g.name for g in self.given]
        return f"for v in program({', '.join(names)}):\n    print(v)  # see above what NumPy gives"


def numpy_agrees(case: Case) -> None:
    """Every step gives what NumPy gives: values, an error of the same class, or the gradient."""
    ours: dict[str, Any] = namespace() | {"own": lambda x: x}
    ours |= dict(zip([g.name for g in case.given], case.tensors(), strict=True))
    theirs: dict[str, Any] = {"np": np, "own": np.array, "pb": np, "inf": np.inf, "nan": np.nan}
    theirs |= {g.name: np.array(g.array) for g in case.given}
    for step in case.steps:
        errors = []
        for names in (theirs, ours):
            before = {n: np.array(theirs[n]) for n in step.makes if n in theirs}
            try:
                with np.errstate(all="ignore"):
                    exec(step.text, names)
                errors.append(None)
            except ERRORS as error:
                errors.append(error)
                if names is theirs:
                    theirs |= before
        expected, got = errors
        if (expected is None) != (got is None):
            raise checks.Finding(f"{step.text}: NumPy {expected!r}, pullback {got!r}")
        if expected is not None and got is not None:
            shared = [e for e in ERRORS if isinstance(expected, e) and isinstance(got, e)]
            if not shared:
                raise checks.Finding(f"{step.text}: NumPy {expected!r}, pullback {got!r}")
            if not isinstance(got, pb.PullbackError):
                raise checks.Finding(f"{step.text}: an error that is not ours, {got!r}")
            for n in step.makes:
                ours.setdefault(n, pb.zeros(()))
                theirs.setdefault(n, np.zeros((), np.float32))
            continue
        for n in theirs:
            if n[0] in "xv" and n[1:].isdigit():
                checks.same_bits(f"{step.text}: {n}", [ours[n].numpy()], [np.asarray(theirs[n])],
                                 nan=False)  # fmt: skip


# -- drawing ---------------------------------------------------------------------------------------


def integer(rng: np.random.Generator, n: int) -> int:
    """A place on an axis; now and then out of range."""
    if rng.random() < 0.03 or n == 0:
        return int(rng.choice((n, -n - 1, n + 7)))
    return int(rng.integers(-n, n))


def slice_text(rng: np.random.Generator, n: int) -> str:
    def bound() -> str:
        return "" if rng.random() < 0.3 else str(int(rng.integers(-n - 2, n + 3)))

    step = str(rng.choice(("", "", "1", "2", "-1", "-2", "3", "-3", str(n + 1))))
    return f"{bound()}:{bound()}" + (f":{step}" if step else "")


class Indices:
    """What index arrays a case is given, beside the array that is indexed."""

    def __init__(self, rng: np.random.Generator):
        self.rng = rng
        self.given: list[Given] = []

    def array(self, a: np.ndarray) -> str:
        """An index array: as a list, a NumPy array or a tensor."""
        name = f"i{len(self.given)}"
        if a.size <= 12 and self.rng.random() < 0.5:
            return f"np.array({literal(a.tolist())}, 'int64').reshape({literal(a.shape)})"
        self.given.append(Given(name, a))
        return name

    def mask(self, *shape: int) -> tuple[str, int]:
        """A mask, which under jit must have values, and how many elements it chooses."""
        a, b = int(self.rng.integers(1, 20)), int(self.rng.integers(2, 7))
        text = f"(np.arange({math.prod(shape)}) * {a} % {b} == 1).reshape({literal(shape)})"
        return text, int(eval(text, {"np": np}).sum())


def index_text(
    rng: np.random.Generator, indices: Indices, shape: tuple[int, ...]
) -> tuple[str, tuple[str, ...]]:
    """A random index of an array of that shape, and the index arrays that it reads."""
    before = len(indices.given)
    parts: list[str] = []
    axis, fancy = 0, None
    stop = len(shape) if rng.random() < 0.6 else int(rng.integers(0, len(shape) + 1))
    while axis < stop:
        n, choice = shape[axis], rng.random()
        if choice < 0.42:
            parts.append(slice_text(rng, n))
        elif choice < 0.58:
            parts.append(str(integer(rng, n)))
        elif choice < 0.63:
            parts.append("None")
            continue
        elif choice < 0.7 and fancy is None and axis + 2 <= len(shape):
            text, chosen = indices.mask(*shape[axis : axis + 2])
            parts.append(text)
            fancy, axis = (chosen,), axis + 1
        elif choice < 0.8 and fancy is None:
            text, chosen = indices.mask(n)
            parts.append(text)
            fancy = (chosen,)
        else:
            if fancy is None:
                fancy = [(5,), (1,), (2, 3), (4, 1), (0,), (37,), ()][int(rng.integers(7))]
            a = [integer(rng, n) for _ in range(int(np.prod(fancy)))]
            kind = "int64" if rng.random() < 0.7 or n > 100 else "int32"
            parts.append(indices.array(np.array(a, kind).reshape(fancy)))
        axis += 1
    if rng.random() < 0.2:
        parts.insert(int(rng.integers(0, len(parts) + 1)), "...")
    if not parts:
        parts = ["..."]
    text = ", ".join(parts)
    return text, tuple(g.name for g in indices.given[before:])


def draw(seed: int) -> Case:
    """The case of a seed: one array, read and written a few times."""
    rng = np.random.default_rng([seed, zlib.crc32(b"indexing")])
    dtype = values.dtype(rng)
    while dtype is pb.bfloat16:  # NumPy has no arithmetic of its own for it
        dtype = values.dtype(rng)
    shape = values.shape(rng)
    indices = Indices(rng)
    start = values.array(rng, dtype, shape)
    theirs: dict[str, Any] = {"np": np, "own": np.array, "pb": np, "x0": np.array(start)}
    theirs |= {"inf": np.inf, "nan": np.nan}
    given = [Given("x0", start)]
    layout = str(rng.choice(("plain", "flipped", "transposed", "strided", "offset")))
    given[0].layout = layout if given[0].allows(layout) else "plain"
    steps: list[Step] = []
    made = ["x0"]
    raises = False
    for k in range(int(rng.integers(2, 8))):
        name = str(rng.choice(made))
        text, reads = index_text(rng, indices, np.shape(theirs[name]))
        names = {g.name: np.array(g.array) for g in indices.given} | theirs
        if (rng.random() < 0.5 and name != "x0") or (name == "x0" and rng.random() < 0.4):
            step = Step(f"v{k} = own({name}[{text}])", (f"v{k}",), (name, *reads))
        else:
            try:
                place = np.shape(eval(f"{name}[{text}]", names))
            except IndexError:
                place = ()
            value, more = value_text(rng, indices, dtype, place)
            signs = ("=", "=", "+=", "-=", "+=" if dtype.is_complex else "*=")  # as NumPy rounds
            sign = str(rng.choice(signs)) if dtype is not pb.bool else "="
            step = Step(f"{name}[{text}] {sign} {value}", (name,), (name, *reads, *more))
        try:
            names = {g.name: np.array(g.array) for g in indices.given} | theirs
            with np.errstate(all="ignore"):
                exec(step.text, names)
            theirs |= {n: names[n] for n in step.makes}
            made += [n for n in step.makes if n not in made]
        except (IndexError, ValueError, TypeError):
            if raises:
                continue
            raises = True  # the last step: what follows would read what is not there
            steps.append(step)
            break
        steps.append(step)
    known = {n: np.asarray(theirs[n]) for n in made}
    case = IndexCase("indexing", seed, given + indices.given, steps, tuple(made), (), known)
    if raises:
        return replace(case, checks=("numpy_agrees",))
    chosen = [c for c in CHECKS if rng.random() < 0.4]
    if dtype.name not in ("float64", "complex128"):
        chosen = [c for c in chosen if c not in CHECKS[-2:]]
    if not dtype.is_inexact:
        chosen = [c for c in chosen if "grad" not in c and "reverse" not in c]
    return replace(case, checks=("runs", "numpy_agrees", *chosen))


def value_text(
    rng: np.random.Generator, indices: Indices, dtype: Any, shape: tuple[int, ...]
) -> tuple[str, tuple[str, ...]]:
    """What is assigned: a number, or an array that broadcasts; now and then one that does not."""
    if rng.random() < 0.35:
        return ("True" if dtype is pb.bool else str(int(rng.integers(0, 5)))), ()
    own = tuple(1 if rng.random() < 0.15 else n for n in shape)
    own = own[int(rng.integers(0, len(own) + 1)) :] if rng.random() < 0.2 else own
    if rng.random() < 0.03 and own:
        own = (*own[:-1], own[-1] + 1)
    name = f"i{len(indices.given)}"
    indices.given.append(Given(name, values.array(rng, dtype, own)))
    return name, (name,)
