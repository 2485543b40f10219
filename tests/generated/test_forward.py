"""Every operation against its oracle, its inferred type, its traced form, other layouts, other
runs.
"""

from __future__ import annotations

import numpy as np
import pytest
from matrix import (
    COMPLEX,
    FLOATS,
    Case,
    accepts,
    arrays_of,
    call,
    cases,
    determined,
    function_of_arrays,
    oracle,
    read,
    tensors,
    widened,
)

import pullback as pb
from pullback.core import pytrees
from pullback.ir.op import REGISTRY, bind
from pullback.ir.samples import Draw


def outputs(case: Case) -> list[np.ndarray]:
    return [x.numpy() for x in arrays_of(call(case.entry, case.sample))]


def skip_unaccepted(case: Case) -> None:
    if not accepts(case.entry, case.dtype):
        pytest.skip("the record does not accept this dtype")


@pytest.mark.parametrize("case", cases(FLOATS + COMPLEX), ids=str)
def test_forward_agrees_with_the_oracle(case: Case):
    skip_unaccepted(case)
    args, kwargs, _ = case.sample
    got = call(case.entry, case.sample)
    exact = case.dtype in (pb.float64, pb.complex128)
    wide_args, wide_kwargs = (args, kwargs) if exact else widened((args, kwargs))
    with np.errstate(all="ignore"):
        expected = oracle(case.entry)(*wide_args, **wide_kwargs)
    expected = list(expected) if isinstance(expected, (tuple, list)) else [expected]
    results = arrays_of(got)
    assert len(results) == len(expected)
    for x, y in zip(results, map(np.asarray, expected), strict=True):
        assert x.shape == y.shape
        if exact:
            assert x.dtype.numpy == y.dtype
    for x, y in zip(
        determined(case.entry, pb, results), determined(case.entry, np, expected), strict=True
    ):
        compare(case, x, np.asarray(y))


def compare(case: Case, x: pb.Tensor, y: np.ndarray) -> None:
    if not x.dtype.is_inexact:
        np.testing.assert_array_equal(x.numpy(), y)
        return
    eps = (
        pb.finfo(x.dtype).eps
        if x.dtype.itemsize <= case.dtype.itemsize
        else pb.finfo(case.dtype).eps
    )
    finite = np.abs(y[np.isfinite(y)])
    scale = float(finite.max(initial=0.0))
    got = x.numpy().astype(y.dtype if y.dtype.kind in "fc" else np.float64)
    tolerance = 16 * eps * case.entry.tolerance
    np.testing.assert_allclose(got, y, rtol=tolerance, atol=tolerance * max(scale, 1e-6))


@pytest.mark.parametrize("case", cases((pb.float64,)), ids=str)
def test_traced_graph_gives_the_same_type_and_bits(case: Case):
    f, arrays = function_of_arrays(case.entry.function, case.sample.args, case.sample.kwargs)
    inputs = list(map(pb.tensor, arrays))
    eager = f(*inputs)
    try:
        graph = pb.trace(f)(*inputs)
    except pb.DTypeError as error:
        assert "traced" in str(error)  # the shape of the result depends on values
        return
    for v, x, y in zip(graph.outputs, eager, graph.run(*inputs, bind=bind), strict=True):
        assert (v.aval.shape, v.aval.dtype) == (x.shape, x.dtype)
        assert x.numpy().tobytes() == y.numpy().tobytes()


def relaid(a: np.ndarray, how: str) -> pb.Tensor:
    """The same values as a view with other strides."""
    if how == "strided":
        big = np.zeros((*a.shape, 3), a.dtype)
        big[..., 1] = a
        return pb.tensor(big)[..., 1]
    if how == "flipped":
        return pb.tensor(np.ascontiguousarray(a[::-1]))[::-1] if a.ndim else pb.tensor(a)
    return pb.permute_dims(pb.tensor(a.T.copy()), tuple(reversed(range(a.ndim))))


@pytest.mark.parametrize("how", ["strided", "flipped", "transposed"])
@pytest.mark.parametrize("case", cases((pb.float64,)), ids=str)
def test_layout_does_not_change_the_bits(case: Case, how: str):
    tree = (case.sample.args, case.sample.kwargs)
    args, kwargs = pytrees.map_tree(
        lambda a: relaid(a, how) if isinstance(a, np.ndarray) else a, tree
    )
    got = [x.numpy() for x in arrays_of(case.entry.function(*args, **kwargs))]
    for x, y in zip(got, outputs(case), strict=True):
        assert np.ascontiguousarray(x).tobytes() == np.ascontiguousarray(y).tobytes()


@pytest.mark.parametrize("case", cases((pb.float32,)), ids=str)
def test_two_runs_give_the_same_bits(case: Case):
    skip_unaccepted(case)
    for x, y in zip(outputs(case), outputs(case), strict=True):
        assert x.tobytes() == y.tobytes()


ERRORS = [
    (key, i) for key, entry in sorted(REGISTRY.items()) for i in range(len(entry.errors(Draw(0))))
]


@pytest.mark.parametrize(("key", "position"), ERRORS, ids=lambda v: str(v))
def test_bad_input_raises_the_promised_error(key: str, position: int):
    entry = REGISTRY[key]
    bad = entry.errors(Draw(0))[position]
    with pytest.raises(bad.error) as caught:
        read(entry.function(*tensors(bad.args), **tensors(bad.kwargs)))
    message = str(caught.value)
    assert bad.match in message
    said = message.split(":", maxsplit=1)[0].strip("_")
    late = issubclass(bad.error, IndexError) and pb.zeros(1).device.kind != "cpu"
    assert late or said.startswith(entry.name.strip("_")), message
    assert type(caught.value).__module__.startswith("pullback"), "the error must be one of ours"


@pytest.mark.parametrize("key", sorted(REGISTRY))
def test_every_operation_has_error_samples(key: str):
    assert REGISTRY[key].errors(Draw(0)), "declare at least one bad call"
