"""Break derivative rules, one at a time, and show that the generated tests notice each of them.

A mutant changes the record of one operation while the program runs. The tests of that operation,
taken from tests/generated, then run until the first one fails. A mutant that no test notices
survives, and makes this program fail: the tests have a hole.
"""

from __future__ import annotations

import argparse
import inspect
import itertools
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial, wraps
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "generated"))

import test_derivatives  # noqa: E402  (found on the path set above)
import test_forward  # noqa: E402

import pullback as pb  # noqa: E402
from pullback.ir.op import REGISTRY, Op, bind  # noqa: E402
from pullback.ir.rules import Rule  # noqa: E402

Around = Callable[[Callable[..., Any], dict[str, Any]], Any]
Change = Callable[[Op, str], None]


class Mutant(NamedTuple):
    """One way to be wrong: `change` breaks the record of an operation, its rule for `operand`."""

    kind: str
    key: str
    operand: str
    change: Change

    @property
    def op(self) -> Op:
        op = REGISTRY[self.key]
        assert isinstance(op, Op), self.key
        return op

    def __str__(self) -> str:
        return f"{self.key} by {self.operand}" if self.operand else self.key


# -- how a record is broken ------------------------------------------------------------------------


def rewired(rule: Callable[..., Any], around: Around) -> Callable[..., Any]:
    """A rule with the same parameters, so that the same values are saved, but another result."""
    names = tuple(inspect.signature(rule).parameters)

    @wraps(rule)
    def broken(*values: Any) -> Any:
        return around(rule, dict(zip(names, values, strict=True)))

    return broken


def reverse_rule(around: Around) -> Change:
    """Break the rule of reverse mode."""

    def change(op: Op, operand: str) -> None:
        op.vjp = {**op.vjp, operand: rewired(op.vjp[operand], around)}

    return change


def forward_rule(around: Around) -> Change:
    """Break the rule of forward mode."""

    def change(op: Op, operand: str) -> None:
        assert isinstance(op.jvp, dict), op.name
        op.jvp = {**op.jvp, operand: rewired(op.jvp[operand], around)}

    return change


def result(spoil: Callable[[Any], Any]) -> Around:
    """Spoil what a rule returns."""

    def around(rule: Callable[..., Any], given: dict[str, Any]) -> Any:
        found = rule(*given.values())
        return None if found is None else spoil(found)

    return around


def given(**spoil: Callable[[dict[str, Any]], Any]) -> Around:
    """Spoil what a rule is given, by the names of its parameters."""

    def around(rule: Callable[..., Any], values: dict[str, Any]) -> Any:
        changed = {n: spoil[n](values) if n in spoil else v for n, v in values.items()}
        return rule(*changed.values())

    return around


def instead(rule: Callable[..., Any]) -> Around:
    """Another rule in place of the right one, given the same values by name."""

    def around(_: Callable[..., Any], values: dict[str, Any]) -> Any:
        wanted = inspect.signature(rule).parameters
        return rule(*[values[n] for n in wanted])

    return around


def attribute(name: str, spoil: Callable[[Any], Any]) -> Change:
    """Spoil another part of a record."""

    def change(op: Op, operand: str) -> None:
        setattr(op, name, spoil(getattr(op, name)))

    return change


def exchanged(op: Op, operand: str) -> None:
    """Give each of two operands the rule of the other."""
    first, second = list(op.vjp)[-2:]
    op.vjp = {**op.vjp, first: op.vjp[second], second: op.vjp[first]}


def refresh(op: Op) -> None:
    """Let the operation notice that its record has changed."""
    op.plans.clear()
    op.__dict__.pop("pull", None)
    op.recorder = None
    op.pull_rules = {n: Rule(op, n, f, "g") for n, f in op.vjp.items()}
    rules = op.jvp if isinstance(op.jvp, dict) else {}
    op.push_rules = {n: Rule(op, n, f, "t") for n, f in rules.items()}


@contextmanager
def applied(mutant: Mutant) -> Iterator[None]:
    """The mutant in place of the operation, for a while."""
    op = mutant.op
    before = dict(op.__dict__)
    mutant.change(op, mutant.operand)
    refresh(op)
    try:
        yield
    finally:
        op.__dict__.clear()
        op.__dict__.update(before)
        refresh(op)


# -- the tests of one operation --------------------------------------------------------------------


class Check(NamedTuple):
    """A generated test with its arguments."""

    name: str
    run: Callable[[], Any]


@cache
def checks() -> dict[str, list[Check]]:
    """The generated tests by operation, derivatives first."""
    found: dict[str, list[Check]] = {}
    for module in (test_derivatives, test_forward):
        for name, test in list(vars(module).items()):
            marks = [m for m in getattr(test, "pytestmark", []) if m.name == "parametrize"]
            if name.startswith("test_") and marks:
                for arguments in _choices(marks):
                    case = arguments.get("case")
                    key = case.key if case is not None else arguments["key"]
                    label = f"{name}[{', '.join(map(str, arguments.values()))}]"
                    found.setdefault(key, []).append(Check(label, partial(test, **arguments)))
    return found


def _choices(marks: list[Any]) -> Iterator[dict[str, Any]]:
    """The arguments of a parametrized test, one choice after the other."""
    axes = []
    for mark in marks:
        names = mark.args[0].split(",") if isinstance(mark.args[0], str) else mark.args[0]
        rows = [v if len(names) > 1 else (v,) for v in mark.args[1]]
        axes.append([dict(zip(names, row, strict=True)) for row in rows])
    for choice in itertools.product(*axes):
        yield {n: v for part in choice for n, v in part.items()}


class Failure(NamedTuple):
    """A test that fails, and what it says."""

    test: str
    said: str


def failures(key: str) -> Iterator[Failure]:
    """The tests of an operation that fail, one after the other."""
    for check in checks().get(key, []):
        try:
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                check.run()
        except pytest.skip.Exception:
            continue
        except (Exception, pytest.fail.Exception) as error:  # whatever it raises, it has noticed
            said = next((line for line in str(error).splitlines() if line.strip()), "")
            yield Failure(check.name, f"{type(error).__name__}: {said.strip()}")


@cache
def known(key: str) -> dict[str, Failure]:
    """The tests of an operation that fail without any mutant: they can't notice one."""
    return {f.test: f for f in failures(key)}


def killer(mutant: Mutant) -> Failure | None:
    """The first test that notices the mutant, None if it survives."""
    before = known(mutant.key)
    with applied(mutant):
        return next((f for f in failures(mutant.key) if f.test not in before), None)


# -- the mutants -----------------------------------------------------------------------------------


def detached(name: str) -> Around:
    return given(**{name: lambda v: v[name].detach()})


def unconjugated(rule: Callable[..., Any], values: dict[str, Any]) -> Any:
    """The factor of a holomorphic rule without its conjugation."""
    g, *rest = values.values()
    return pb.conj(rule(pb.conj(g), *rest))


def first_slice(g: Any, shape: tuple[int, ...]) -> Any:
    """What broadcasting repeated, taken once instead of summed."""
    for _ in range(g.ndim - len(shape)):
        g = g[0]
    for axis, n in enumerate(shape):
        if g.shape[axis] != n:
            g = g[(slice(None),) * axis + (slice(0, 1),)]
    return g


def next_axis(values: dict[str, Any]) -> int:
    return (values["axis"] + 1) % values["g"].ndim


def stepped_back(values: dict[str, Any]) -> tuple[int, ...]:
    return tuple(max(s - 1, 0) for s in values["starts"])


def mirrored(values: dict[str, Any]) -> Any:
    return values["g"][::-1] if values["g"].ndim else values["g"]


def overwriting(g: Any, x_aval: Any, indices: tuple) -> Any:
    zeros = pb.zeros(x_aval.shape, dtype=x_aval.dtype)
    return bind(REGISTRY["primitive.scatter_set"], zeros, g, *indices)


def dividing(g: Any, x: Any, axes: tuple[int, ...]) -> Any:
    """The product of the others as the product over the element: NaN at zero."""
    return g.reshape(_kept(x, axes)) * (pb.prod(x, axis=axes, keepdims=True) / x)


def _kept(x: Any, axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(1 if d in axes else n for d, n in enumerate(x.shape))


def unshared(g: Any, x: Any, out: Any, axes: tuple[int, ...]) -> Any:
    """The whole derivative to each of several equal maxima."""
    shape = _kept(x, axes)
    return g.reshape(shape) * pb.astype(x == out.reshape(shape), x.dtype)


def one_winner(g: Any, x: Any, y: Any) -> Any:
    return pb.where(x <= y, g, 0.0)


def everything(needs: dict[str, Any]) -> dict[str, Any]:
    return {n: (frozenset({"x"}), True) for n in needs}


def other_keepdims(infer: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, axes, keepdims: infer(x, axes=axes, keepdims=not keepdims)


def unsigned(infer: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *avals, **static: (infer(*avals, **static)[0], pb.uint64)


def R(kind: str, key: str, operand: str, around: Around) -> Mutant:
    return Mutant(kind, key, operand, reverse_rule(around))


MUTANTS = (
    R("a sign is wrong", "cos", "x", result(lambda r: -r)),
    R("a sign is wrong", "subtract", "y", result(lambda r: -r)),
    R("a factor 2 too many", "sqrt", "x", result(lambda r: r * 2.0)),
    R("a factor 2 too few", "square", "x", result(lambda r: r * 0.5)),
    R("a constant is slightly off", "erf", "x", result(lambda r: r * 1.0001)),
    R("a derivative is left out", "hypot", "y", result(lambda r: None)),
    R("a term is dropped", "tanh", "x", instead(lambda g, out: -g * out * out)),
    R("a term is dropped", "sigmoid", "x", instead(lambda g, out: g * out)),
    R("a term is added", "exp", "x", result(lambda r: r + 1e-3)),
    R("a saved operand is a constant", "sin", "x", detached("x")),
    R("a saved operand is a constant", "multiply", "x", detached("y")),
    R("a saved operand is a constant", "matmul", "y", detached("x")),
    R("a saved operand is a constant", "prod", "x", detached("x")),
    R("a saved result is a constant", "divide", "y", detached("out")),
    R("a saved result is a constant", "logsumexp", "x", detached("out")),
    R("a saved result is a constant", "tan", "x", detached("out")),
    R("a cotangent is a constant", "log", "x", detached("g")),
    R("a rule is not linear in g", "negative", "x", given(g=lambda v: pb.abs(v["g"]))),
    R("a conjugate is forgotten", "reciprocal", "x", unconjugated),
    R("a conjugate is forgotten", "matmul", "x", unconjugated),
    R("an imaginary part is lost", "conj", "x", result(
        lambda r: pb.astype(pb.real(r), r.dtype) if r.dtype.is_complex else r)),
    Mutant("broadcasting is not undone", "add", "", attribute("unbroadcast", lambda _: None)),
    Mutant("broadcasting is undone without a sum", "maximum", "",
           attribute("unbroadcast", lambda _: first_slice)),
    R("an axis is wrong", "cumsum", "x", given(axis=next_axis)),
    R("an axis is wrong", "cumprod", "x", given(axis=next_axis)),
    R("a direction is wrong", "cumsum", "x", given(reverse=lambda v: not v["reverse"])),
    R("a dtype is wrong", "log1p", "x", result(lambda r: pb.astype(r, pb.float32))),
    R("a dtype is wrong", "astype", "x", instead(lambda g: g)),
    R("a permutation is not inverted", "permute_dims", "x", instead(
        lambda g, axes: pb.permute_dims(g, axes))),
    R("an operand is not transposed", "matmul", "x", instead(
        lambda g, y: bind(REGISTRY["matmul"], g, y))),
    R("duplicates overwrite each other", "primitive.gather", "x", instead(overwriting)),
    R("a slice is off by one", "primitive.slice", "x", given(starts=stepped_back)),
    R("a slice is off by one", "primitive.embed", "x", given(starts=stepped_back)),
    R("a part is taken from the wrong place", "concat", "xs", given(position=lambda v: 0)),
    R("the order of elements is wrong", "reshape", "x", given(g=mirrored)),
    R("a zero is divided by", "prod", "x", instead(dividing)),
    R("ties do not share", "max", "x", instead(unshared)),
    R("ties do not share", "minimum", "x", instead(one_winner)),
    Mutant("operands have each other's rules", "atan2", "", exchanged),
    Mutant("operands have each other's rules", "where", "", exchanged),
    R("the wrong value is read", "cosh", "x", given(x=lambda v: v["x"] * 0.5)),
    R("a reduction is not spread evenly", "sum", "x", given(g=lambda v: v["g"] * 0.5)),
    R("a direction is wrong", "primitive.dft", "x", given(inverse=lambda v: not v["inverse"])),
    R("a factor is left out", "primitive.dft", "x", given(factor=lambda v: 1.0)),
    R("coefficients of two count once", "primitive.rdft", "x", instead(
        lambda g, x_aval, axis, factor: bind(
            REGISTRY["primitive.irdft"], g, axis=axis, n=x_aval.shape[axis], factor=factor))),
    R("coefficients of two count once", "primitive.irdft", "x", instead(
        lambda g, axis, factor: bind(REGISTRY["primitive.rdft"], g, axis=axis, factor=factor))),
    R("updates get all of g", "primitive.scatter_set", "x", instead(lambda g: g)),
    Mutant("forward mode: a sign is wrong", "abs", "x", forward_rule(result(lambda r: -r))),
    Mutant("forward mode: a factor is wrong", "cumprod", "x",
           forward_rule(result(lambda r: r * 2.0))),
    Mutant("forward mode: a value is a constant", "prod", "x", forward_rule(detached("x"))),
    Mutant("forward mode: claims to be linear", "logsumexp", "",
           attribute("jvp", lambda _: "linear")),
    Mutant("a derivative is denied", "expm1", "", attribute("vjp", lambda _: {})),
    Mutant("values too many are kept", "cumsum", "", attribute("needs", everything)),
    Mutant("a shape is wrong", "sum", "", attribute("infer", other_keepdims)),
    Mutant("a result's dtype is wrong", "argmax", "", attribute("infer", unsigned)),
)  # fmt: skip


def report(chosen: list[Mutant]) -> list[Mutant]:
    """Print what became of each mutant; returns the survivors."""
    survivors = []
    for n, mutant in enumerate(chosen, 1):
        known(mutant.key)  # not part of the mutant's time
        start = time.perf_counter()
        found = killer(mutant)
        seconds = time.perf_counter() - start
        verdict = found.test if found else "SURVIVED"
        count = f"{n:2}/{len(chosen)}"
        print(f"{count} {mutant.kind:36} {mutant!s:26} {seconds:5.2f} s  {verdict}", flush=True)
        if found:
            print(f"      {found.said[:110]}")
        else:
            survivors.append(mutant)
    return survivors


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("keys", nargs="*", help="only mutants of these operations")
    keys = parser.parse_args().keys
    chosen = [m for m in MUTANTS if not keys or m.key in keys]
    survivors = report(chosen)
    kinds, operations = {m.kind for m in chosen}, {m.key for m in chosen}
    sick = [f for key in sorted(operations) for f in known(key).values()]
    for failure in sick:
        print(f"fails without any mutant: {failure.test}\n      {failure.said[:110]}")
    print(
        f"{len(chosen)} mutants of {len(kinds)} kinds in {len(operations)} operations:"
        f" {len(chosen) - len(survivors)} killed, {len(survivors)} survived"
    )
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
