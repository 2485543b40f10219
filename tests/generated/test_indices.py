"""Integers beside floating arrays are positions, and each is checked; the others are listed."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from matrix import function_of_arrays, read, samples

import pullback as pb
from pullback.core import pytrees
from pullback.core.errors import IndexOutOfRange
from pullback.ir.op import REGISTRY

# What the integers of these are: no positions, or not all of them.
OTHER_INTEGERS = {
    "bincount": "counted, and the result grows with them",
    "cov": "weights",
    "ldexp": "exponents",
    "repeat": "numbers of times",
    "nn.binary_cross_entropy": "probabilities",
    "nn.contrastive_loss": "labels",
    "nn.cosine_embedding_loss": "labels",
    "nn.dice_loss": "labels",
    "nn.hinge_embedding_loss": "labels",
    "nn.hinge_loss": "labels",
    "nn.margin_ranking_loss": "labels",
    "nn.multilabel_margin_loss": "positions, which a negative one ends",
    "nn.multilabel_soft_margin_loss": "labels",
    "nn.sigmoid_focal_loss": "labels",
    "nn.soft_margin_loss": "labels",
}
FAR = (10**6, -(10**6))


def integers(leaves: list[Any]) -> list[int]:
    """The places of integer arrays, if there are floating ones beside them."""
    kinds = [a.dtype.kind if isinstance(a, np.ndarray) and a.size else "" for a in leaves]
    if not {"f", "c"} & set(kinds):
        return []
    # Numbers of 32 bits without a sign are keys of random numbers, which may be any.
    return [
        i for i, kind in enumerate(kinds) if kind in ("i", "u") and leaves[i].dtype != np.uint32
    ]


def flat_samples(key: str) -> list[tuple[list[Any], Any]]:
    found = samples(REGISTRY[key], pb.float64)
    return [pytrees.flatten((s.args, s.kwargs)) for s in found]


def keys_with_integers() -> list[str]:
    return [
        key for key in sorted(REGISTRY) if any(integers(leaves) for leaves, _ in flat_samples(key))
    ]


@pytest.mark.parametrize("key", keys_with_integers())
def test_a_position_out_of_range_is_an_error(key: str):
    function, tried = REGISTRY[key].function, 0
    for leaves, structure in flat_samples(key):
        places = [i for i, a in enumerate(leaves) if isinstance(a, np.ndarray)]
        call, _ = function_of_arrays(function, *pytrees.unflatten(structure, leaves))
        for place in integers(leaves):
            for value in FAR:
                given = [np.array(leaves[i], order="C") for i in places]
                at = places.index(place)
                if not np.can_cast(np.min_scalar_type(value), given[at].dtype):
                    continue
                given[at].reshape(-1)[0] = value
                if key in OTHER_INTEGERS:
                    with suppress(pb.PullbackError):
                        read(call(*map(pb.tensor, given)))
                    tried += 1
                    continue
                for run in (call, pb.jit(call)):
                    # Lengths and offsets are wrong shapes.
                    with pytest.raises((IndexOutOfRange, pb.ShapeError, pb.DTypeError)) as caught:
                        read(run(*map(pb.tensor, given)))
                    if isinstance(caught.value, pb.DTypeError):
                        assert "traced" in str(caught.value), caught.value
                tried += 1
    assert tried


def test_all_that_are_listed_exist():
    assert set(OTHER_INTEGERS) <= set(keys_with_integers())
