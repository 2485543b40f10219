"""Containers of all kinds as arguments and results: of jitted functions, derivatives and maps."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, defaultdict
from typing import Any

import pytest

import pullback as pb


@dataclasses.dataclass(kw_only=True)
class Named:
    a: Any
    b: Any = 2.0


@dataclasses.dataclass
class Mixed:
    a: Any
    b: Any = dataclasses.field(kw_only=True)
    c: Any = None


@dataclasses.dataclass
class Derived:
    a: Any
    b: Any = dataclasses.field(init=False)

    def __post_init__(self):
        self.b = self.a * 3.0


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    a: Any
    b: Any = dataclasses.field(init=False, default=5.0)


def given() -> pb.Tensor:
    return pb.tensor([1.0, 2.0])


DATACLASSES = {
    "keywords alone": lambda: Named(a=given(), b=given() * 3),
    "keywords too": lambda: Mixed(given(), b=given() * 3),
    "made by __post_init__": lambda: Derived(given()),
    "frozen": lambda: Frozen(given()),
}


@pytest.mark.parametrize("name", DATACLASSES)
def test_fields_of_all_kinds_keep_their_places(name):
    tree: Any = DATACLASSES[name]()
    for doubled in (pb.map_tree(lambda x: x * 2, tree), pb.jit(changed)(tree)):
        assert type(doubled) is type(tree)
        assert doubled.a.tolist() == [2.0, 4.0]
        assert pb.all(doubled.b == tree.b * 2).item()
    gradient = pb.grad(lambda tree: pb.sum(tree.a**2) + pb.sum(tree.b**2))(tree)
    assert gradient.a.tolist() == [2.0, 4.0]
    assert pb.all(gradient.b == tree.b * 2).item()


def changed(tree: Any) -> Any:
    return pb.map_tree(lambda x: x * 2, tree)


@pytest.mark.parametrize(
    "tree",
    [OrderedDict(b=given(), a=given() * 3), defaultdict(list, {"b": given(), "a": given() * 3})],
    ids=["ordered", "with a default"],
)
def test_dicts_of_other_classes(tree):
    for doubled in (pb.map_tree(lambda x: x * 2, tree), pb.jit(changed)(tree)):
        assert type(doubled) is type(tree) and list(doubled) == ["b", "a"]
        assert doubled["a"].tolist() == [6.0, 12.0]
        assert getattr(doubled, "default_factory", None) is getattr(tree, "default_factory", None)
    gradient = pb.grad(lambda tree: pb.sum(tree["a"] ** 2))(tree)
    assert type(gradient) is type(tree)
    assert (gradient["a"].tolist(), gradient["b"].tolist()) == ([6.0, 12.0], [0.0, 0.0])
    state = pb.optim.SGD(lr=0.5).init(tree)
    updated, _ = pb.optim.SGD(lr=0.5).step(tree, gradient, state)
    assert type(updated) is type(tree) and updated["a"].tolist() == [0.0, 0.0]
    bad = tree.copy()
    bad["n"] = 1
    with pytest.raises(pb.DTypeError, match=r"\['n'\]"):
        pb.grad(lambda tree: pb.sum(tree["a"]))(bad)
