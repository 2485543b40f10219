"""What nobody should pass, but somebody does: an answer or a clear error, soon."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.core.errors import DTypeError, ShapeError

X = pb.tensor([1.0, 2.0, 3.0])


def in_itself(*items: Any) -> list[Any]:
    """A list that contains itself, twice, so that a walk of all paths never ends."""
    inside: list[Any] = [*items]
    inside += [inside, inside]
    return inside


AS_ARRAYS: dict[str, Callable[[Any], Any]] = {
    "tensor": pb.tensor,
    "asarray": pb.asarray,
    "sum": pb.sum,
    "stack": pb.stack,
    "where": lambda x: pb.where(x, X, X),
    "getitem": lambda x: X[x],
    "setitem": lambda x: (X + 0.0).__setitem__(0, x),
}
AS_TREES: dict[str, Callable[[Any], Any]] = {
    "jit": pb.jit(lambda x: X),
    "result of jit": lambda x: pb.jit(lambda y: in_itself(y))(X),
    "grad": pb.grad(lambda x: X[0]),
    "vjp": lambda x: pb.vjp(lambda y: X, x),
    "scan": lambda x: pb.scan(lambda c, _: (c, None), x, None, 3),
    "cond": lambda x: pb.cond(True, lambda y: y, lambda y: y, x),
}


@pytest.mark.parametrize("items", [(1.0,), (X,), ()], ids=["number", "tensor", "nothing"])
@pytest.mark.parametrize("name", AS_ARRAYS)
def test_a_list_that_contains_itself_is_no_array(name: str, items: tuple[Any, ...]) -> None:
    with pytest.raises(ShapeError, match="lists are nested at most 64 deep"):
        AS_ARRAYS[name](in_itself(*items))


@pytest.mark.parametrize("tree", [in_itself(X), {"a": in_itself(X)}, (in_itself(),)])
@pytest.mark.parametrize("name", AS_TREES)
def test_a_container_that_contains_itself_is_no_tree(name: str, tree: Any) -> None:
    with pytest.raises(ShapeError, match="Does it contain itself"):
        AS_TREES[name](tree)


def test_a_dict_that_contains_itself_is_no_tree() -> None:
    tree: dict[str, Any] = {"x": X}
    tree["self"] = tree
    with pytest.raises(ShapeError, match="Does it contain itself"):
        pb.jit(lambda t: t["x"])(tree)


def nested(depth: int, leaf: Any) -> Any:
    kinds = (lambda v: [v], lambda v: (v, 1), lambda v: {"k": v, "n": None})
    for k in range(depth):
        leaf = kinds[k % 3](leaf)
    return leaf


@pytest.mark.parametrize("depth", [0, 1, 49, 50, 51, 99, 199, 300])
def test_results_of_jit_may_be_nested(depth: int) -> None:
    found = pb.jit(lambda x: [nested(depth, x * 2.0), x, nested(depth, 7)])(X)
    assert repr(found) == repr([nested(depth, X * 2.0), X, nested(depth, 7)])


HUGE: dict[str, Callable[[int], Any]] = {
    "zeros": lambda n: pb.zeros((n,)),
    "empty": lambda n: pb.empty((3, n)),
    "no elements": lambda n: pb.ones((max(n, 2**63), 0)),
    "full": lambda n: pb.full((n, n), 1.5),
    "arange": lambda n: pb.arange(n),
    "linspace": lambda n: pb.linspace(0.0, 1.0, n),
    "eye": pb.eye,
    "broadcast_to": lambda n: pb.broadcast_to(X, (n, 3)),
    "tile": lambda n: pb.tile(X, (n,)),
    "uniform": lambda n: pb.random.uniform(pb.random.key(0), (n,)),
    "segment_sum": lambda n: pb.segment_sum(X, pb.tensor([0, 1, 2]), n),
    "bincount": lambda n: pb.bincount(pb.tensor([0, 1, 2]), minlength=n),
    "jit": lambda n: pb.jit(lambda x: x[0] + pb.zeros((n,)))(X),
    "outer": lambda n: pb.ones((2**31, 1)) * pb.ones((1, 2**31)),
}


@pytest.mark.parametrize("n", [2**62, 2**63, 10**30])
@pytest.mark.parametrize("name", HUGE)
def test_shapes_beyond_every_memory_are_refused(name: str, n: int) -> None:
    with pytest.raises(ShapeError, match="an array has less than 2\\*\\*63 bytes, got shape"):
        HUGE[name](n)


@pytest.mark.parametrize("name", ["arange", "segment_sum", "bincount"])
def test_shapes_beyond_this_memory_are_refused(name: str) -> None:
    with pytest.raises(MemoryError, match="got a request for 9"):
        HUGE[name](2**50 if name != "segment_sum" else 2**51)


def test_sizes_below_the_bound_are_views() -> None:
    assert pb.broadcast_to(X, (2**58, 3)).shape == (2**58, 3)
    assert pb.zeros((2**62, 0)).shape == (2**62, 0)


@pytest.mark.parametrize("name", ["sum", "mean", "max", "min", "prod"])
def test_numbers_of_segments(name: str) -> None:
    function = getattr(pb, f"segment_{name}")
    for count, error in (
        (-1, ShapeError),
        (2.0, DTypeError),
        ("3", DTypeError),
        (True, DTypeError),
    ):
        with pytest.raises(error, match=f"segment_{name}: num_segments must"):
            function(X, pb.tensor([0, 1, 2]), count)
    with pytest.raises(ShapeError, match="minlength must not be negative"):
        pb.bincount(pb.tensor([0, 1]), minlength=-1)


def test_polygamma_of_high_order() -> None:
    assert np.isfinite(pb.polygamma(128, pb.tensor([60.0, 200.0], dtype="float64")).numpy()).all()
    for n in (129, 10**6, 10**30):
        with pytest.raises(ShapeError, match="n must be at most 128"):
            pb.polygamma(n, X)


MASKED = np.ma.masked_array([1.0, 2.0, 3.0], [False, True, False])
USES: dict[str, Callable[[Any], Any]] = {
    "asarray": pb.asarray,
    "tensor": pb.tensor,
    "list": lambda m: pb.tensor([m, m]),
    "constant in a list": lambda m: pb.tensor([1.0, m[1]]),
    "list of both": lambda m: pb.tensor([X, m]),
    "add": lambda m: X + m,
    "sum": pb.sum,
    "from_dlpack": pb.from_dlpack,
    "setitem": lambda m: (X + 0.0).__setitem__(slice(None), m),
    "mask": lambda m: X[m > 1.0],
    "jit": pb.jit(lambda m: m),
    "captured": lambda m: pb.jit(lambda x: x * m)(X),
    "grad": pb.grad(pb.sum),
}


@pytest.mark.parametrize("name", USES)
def test_masks_are_not_dropped(name: str) -> None:
    with pytest.raises(DTypeError, match="a tensor has no mask, got a masked array with 1 masked"):
        USES[name](MASKED)


def test_a_masked_array_on_the_left_stays_one() -> None:
    total = MASKED + X
    assert isinstance(total, np.ma.MaskedArray)
    assert total.mask.tolist() == MASKED.mask.tolist()


def test_masked_arrays_without_masked_elements_are_arrays() -> None:
    for mask in (np.ma.nomask, False, [False, False]):
        np.testing.assert_array_equal(pb.asarray(np.ma.masked_array([1, 2], mask)).numpy(), [1, 2])
