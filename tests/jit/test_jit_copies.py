"""Jitted functions that are copied and pickled."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

import pullback as pb


@pb.jit
def doubled(x):
    return 2 * x


def scaled(x, by=2.0):
    return x * by


class Model:
    def __init__(self, weight):
        self.weight = weight
        self.step = pb.jit(self.product)

    def product(self, x):
        return x * self.weight

    @pb.jit
    def tripled(self, x):
        return 3 * x


def pickled(x: Any) -> Any:
    return pickle.loads(pickle.dumps(x))


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickled])
def test_a_decorated_function_is_itself(copied):
    assert copied(doubled) is doubled
    assert copied(Model.tripled) is Model.tripled


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickled])
def test_another_is_made_again(copied):
    f = pb.jit(scaled, static_argnames="by", name="scale", memory="1 MiB")
    f(pb.ones(2), by=4.0)
    g = copied(f)
    assert g is not f
    assert (g.name, g.memory, g.cache_info().misses) == ("scale", 1 << 20, 0)
    assert g(pb.ones(2), by=3.0).tolist() == [3.0, 3.0]
    assert g(pb.ones(2), by=4.0).tolist() == [4.0, 4.0]
    assert g.cache_info().misses == 2  # the argument is static


@pytest.mark.parametrize("copied", [copy.deepcopy, pickled])
def test_a_jitted_method_belongs_to_the_copy(copied):
    model = Model(pb.tensor([1.0, 2.0]))
    model.step(pb.ones(2))
    other = copied(model)
    other.weight = pb.tensor([5.0, 6.0])
    assert other.step(pb.ones(2)).tolist() == [5.0, 6.0]
    assert model.step(pb.ones(2)).tolist() == [1.0, 2.0]
