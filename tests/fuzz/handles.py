"""Handles: random updates in place, against a model in which every name has an array of its own."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace

import numpy as np

import pullback as pb
from fuzz import checks, values
from fuzz.case import Case, Failed, Given, Step, namespace
from fuzz.indexing import Indices, index_text

__all__ = ["HandleCase", "draw"]

# What makes a new handle of a name: {a}, {b} are names, {k} is a small number.
MAKING = (
    "{a} + {b}", "{a} * {k}", "+{a}", "own({a})", "pb.reshape({a}, {a}.shape)", "{a} - 0",
    "pb.where({a} > {b}, {a}, {b})", "pb.permute_dims({a}, tuple(range({a}.ndim)))",
    "pb.broadcast_to({a}, {a}.shape)", "pb.flip(pb.flip({a}))", "pb.concat([{a}])",
    "pb.maximum({a}, {a})", "pb.clip({a})", "pb.squeeze({a}[None], axis=0)",
    "pb.asarray({a}, copy=True)", "pb.zeros_like({a})", "pb.ones_like({a})", "{a}[...]",
    "pb.broadcast_arrays({a}, {b})[0]", "pb.meshgrid({a}.reshape(-1))[0].reshape({a}.shape)",
    "pb.astype({a}, {a}.dtype)", "pb.roll({a}, 0)", "pb.full_like({a}, {k})", "pb.abs({a})",
)  # fmt: skip
UPDATES = ("{a} += {k}", "{a} *= {b}", "{a} -= {b}", "{a} += {a}", "{a}[...] = {k}",
           "{a}[...] = {b}", "{a} *= {k}")  # fmt: skip
# What keeps a handle for later: in a list, in a recorded graph, in a function, in memory.
EXPORTS = ("np.asarray({a})", "{a}.numpy()", "np.from_dlpack({a})")


@dataclass
class HandleCase(Case):
    """Names that are made of each other and updated; each has a value of its own."""

    def run_check(self, name: str) -> None:
        if name != "updates_change_one_name":
            return super().run_check(name)
        try:
            updates_change_one_name(self)
        except Exception as error:
            raise Failed(self, name, error) from error
        return None

    def call(self, check: str) -> str:
        if check != "updates_change_one_name":
            return super().call(check)
        return f"print(program({', '.join(g.name for g in self.given)}))  # see above"


def updates_change_one_name(case: Case) -> None:
    """After each step the name that it made has a new value, and all others have what they had."""
    scope = namespace() | dict(zip([g.name for g in case.given], case.tensors(), strict=True))
    model = {g.name: np.array(g.array) for g in case.given}
    exported: dict[str, np.ndarray] = {}
    for step in case.steps:
        if step.makes[0].startswith("e"):
            exec(step.text, scope)
            exported[step.makes[0]] = np.array(scope[step.makes[0]])
        else:
            names = {"np": np, "pb": np, "own": np.array} | model
            with np.errstate(all="ignore"):
                exec(step.text, names)
            exec(step.text, scope)
            for n in step.makes:
                model[n] = np.array(names[n])  # never a view
        for n, expected in model.items():
            checks.same_bits(f"{step.text}: {n}", [scope[n].numpy()], [expected], nan=False)
        for n, expected in exported.items():
            checks.same_bits(f"{step.text}: exported {n}", [np.asarray(scope[n])], [expected])
    ids = [id(scope[n]) for n in model]
    if len(set(ids)) != len(ids):
        raise checks.Finding("two names have one handle")


def draw(seed: int) -> Case:
    """The case of a seed: a few arrays of one shape, made of each other and updated."""
    rng = np.random.default_rng([seed, zlib.crc32(b"handles")])
    kind = pb.float64 if rng.random() < 0.6 else pb.int64
    shape = ((), (3,), (2, 3), (1,), (0,), (33,), (1025,), (4, 1))[int(rng.integers(8))]
    given = [Given(f"x{i}", values.array(rng, kind, shape)) for i in range(2)]
    model = {g.name: np.array(g.array) for g in given}
    steps: list[Step] = []
    indices = Indices(rng)
    exported = 0
    for _ in range(int(rng.integers(4, 16))):
        a, b = (str(n) for n in rng.choice(list(model), 2))
        k = str(int(rng.integers(0, 4)))
        choice = rng.random()
        if choice < 0.45:
            made = f"v{len(model)}"
            pattern = str(rng.choice(MAKING))
            text, makes = f"{made} = {pattern.format(a=a, b=b, k=k)}", (made,)
        elif choice < 0.55:
            text, makes = f"e{exported} = {rng.choice(EXPORTS).format(a=a)}", (f"e{exported}",)
            exported += 1
        elif choice < 0.8:
            text, makes = str(rng.choice(UPDATES)).format(a=a, b=b, k=k), (a,)
        else:
            index, more = index_text(rng, indices, shape)
            text, makes = f"{a}[{index}] += {k}", (a,)
            if more:
                continue  # index arrays are the subject of `indexing`
        names = {"np": np, "pb": np, "own": np.array} | {n: np.array(v) for n, v in model.items()}
        if not makes[0].startswith("e"):
            try:
                with np.errstate(all="ignore"):
                    exec(text, names)
            except (IndexError, ValueError):
                continue
            if np.shape(names[makes[0]]) != shape or names[makes[0]].dtype != kind.numpy:
                continue
            model[makes[0]] = np.array(names[makes[0]])
            if not np.all(np.abs(model[makes[0]]) < 1e9):
                break
        steps.append(Step(text, makes, (a, b)))
    returns = tuple(n for n in model if n.startswith("v")) or ("x0",)
    known = dict(model)
    case = HandleCase("handles", seed, given, steps, returns, (), known)
    chosen = ["updates_change_one_name"]
    if not exported and all(n.startswith("v") for s in steps for n in s.makes):
        chosen += ["jit_gives_the_bits_of_eager", "threads_change_nothing"]
    return replace(case, checks=tuple(chosen))
