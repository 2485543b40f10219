"""What a derivative reads of the steps of a scan: values to keep, and values to compute again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from pullback.autodiff.workspace import BodyCut, Workspace
from pullback.ir.cost import is_cheap
from pullback.ir.graph import Equation, Var

__all__ = ["Definitions", "choose"]

Definitions = dict[Var, tuple[int, Equation]]


class Steps(Protocol):
    """What is asked of a scan: which variables of its body it computes, keeps or is given."""

    space: Workspace
    recompute: bool

    def is_foreign(self, var: Var, definitions: Definitions) -> bool:
        """Whether another call computes a variable."""
        ...

    def is_kept(self, var: Var, definitions: Definitions) -> bool:
        """Whether the call that computes a variable returns its values in all steps."""
        ...

    def is_given(self, var: Var) -> bool:
        """Whether a variable comes from outside: the same in each step, or a row of an array."""
        ...


def choose(call: Steps, outputs: Iterable[Var], definitions: Definitions) -> BodyCut:
    """The equations that `call` computes itself, and what it needs from elsewhere."""
    outputs = list(outputs)
    if call.recompute:
        return call.space.cut(outputs, definitions)

    def elsewhere(var: Var) -> bool:
        return call.is_foreign(var, definitions)

    first = call.space.cut(outputs, definitions, elsewhere)
    foreign = [v for v in first.needed if v in definitions]
    again = _computed_again(call, foreign, definitions)
    return call.space.cut(outputs, definitions, lambda v: elsewhere(v) and v not in again)


def _computed_again(call: Steps, needed: list[Var], definitions: Definitions) -> set[Var]:
    """Those needed variables, and what leads to them, that are cheaper computed than kept."""
    kept = {v for v in needed if not is_cheap(definitions[v][1])}
    again: set[Var] = set()
    for var in sorted(needed, key=lambda v: definitions[v][0]):
        if var in kept or var in again or call.is_kept(var, definitions):
            continue
        sources, between = _sources(call, var, definitions)
        more = sources - kept
        if sum(v.aval.nbytes for v in more) < var.aval.nbytes:
            kept |= more
            again |= between
        else:
            kept.add(var)
    return again - kept


def _sources(call: Steps, var: Var, definitions: Definitions) -> tuple[set[Var], set[Var]]:
    """What to keep so that cheap operations can compute `var` again, and what these compute."""
    sources: set[Var] = set()
    between: set[Var] = set()
    stack = [var]
    while stack:
        v = stack.pop()
        if v in between or v in sources or call.is_given(v):
            continue
        if v in definitions and (v is var or not call.is_kept(v, definitions)):
            if is_cheap(definitions[v][1]):
                between.add(v)
                stack += definitions[v][1].inputs
                continue
        elif call.is_kept(v, definitions):
            continue
        sources.add(v)
    return sources, between
