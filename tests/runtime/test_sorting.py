"""Argsort and binary search against NumPy: dtypes, strides, stability, NaN, row lengths."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from pullback.core import dtypes
from pullback.core.errors import DTypeError, ShapeError
from pullback.runtime.cpu import native
from pullback.runtime.cpu.sort import sort_stages
from runtime.programs import argsort_program, searchsorted_program

REAL = [d.name for d in dtypes.ALL if not d.is_complex]
FLOATS = [name for name in REAL if "float" in name]
# Below, at and above the limits between the three methods, and one row of several chunks.
LENGTHS = [
    1,
    2,
    3,
    31,
    sort_stages._SHORT,
    sort_stages._SHORT + 1,
    1000,
    sort_stages._LONG - 1,
    sort_stages._LONG,
]


def random(dtype: str, *shape: int) -> np.ndarray:
    """Values over the whole range of the dtype with ties; floats with both zeros, infinity, NaN."""
    rng = np.random.default_rng(shape)
    kind = dtypes.as_dtype(dtype)
    if kind.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if kind.is_integer:
        limits = np.iinfo(dtype)
        x = rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)
        return np.where(rng.random(shape) < 0.2, x.dtype.type(7), x)
    specials = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 1.5, 2.0**-16])
    x = rng.standard_normal(shape) * 10 ** rng.uniform(-3, 3, shape)
    return np.where(rng.random(shape) < 0.3, rng.choice(specials, shape), x).astype(kind.numpy)


def comparable(x: np.ndarray) -> np.ndarray:
    """The same order in a dtype that NumPy sorts with NaN last."""
    return x.astype(np.float32) if x.dtype.name == "bfloat16" else x


def expected_order(x: np.ndarray, descending: bool) -> np.ndarray:
    x = comparable(x)
    if not descending:
        return np.argsort(x, -1, kind="stable")
    backwards = np.argsort(x[..., ::-1], -1, kind="stable")[..., ::-1]
    return x.shape[-1] - 1 - backwards


def buffer(x: np.ndarray) -> native.Buffer:
    return native.wrap(x.__array_interface__["data"][0], x.nbytes, x)


def strides(x: np.ndarray) -> list[int]:
    return [s // x.itemsize for s in x.strides]


def argsort(x: np.ndarray, descending: bool = False) -> np.ndarray:
    *outer, stride = strides(x)
    dtype = dtypes.as_dtype(x.dtype.name)
    program = argsort_program(dtype, x.shape[:-1], outer, x.shape[-1], stride, descending)
    return np.frombuffer(program(buffer(x)), np.int64).reshape(x.shape)


def check(x: np.ndarray) -> None:
    for descending in (False, True):
        np.testing.assert_array_equal(argsort(x, descending), expected_order(x, descending))


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("dtype", REAL)
def test_one_row(dtype, length):
    check(random(dtype, length))


@pytest.mark.parametrize("dtype", REAL)
def test_rows(dtype):
    for shape in [(50, 7), (3, 4, 5), (9, 300), (40, 150), (2, 3, 1000), (1, 1, 200)]:
        check(random(dtype, *shape))


@pytest.mark.parametrize("dtype", ["int8", "float32", "int64"])
def test_few_and_several_long_rows(dtype):
    check(random(dtype, 3, sort_stages._LONG + 5))
    check(random(dtype, 5, sort_stages._LONG + 5))


@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32", "float64"])
@pytest.mark.parametrize("length", [9, 300, 70000])
def test_strides(dtype, length):
    x = random(dtype, 2, length, 3)
    check(x[..., 1])
    check(x[:, ::-1, 0])
    check(x[::-1, ::2, 2])
    check(x.transpose(0, 2, 1))
    check(x.transpose(2, 0, 1)[::2])
    check(np.broadcast_to(x[0, :, 0], (4, length)))


@pytest.mark.parametrize("dtype", ["bool", "float32", "int64"])
def test_empty(dtype):
    for shape in [(0,), (0, 5), (5, 0), (3, 0, 200)]:
        assert argsort(random(dtype, *shape)).shape == shape


@pytest.mark.parametrize("length", [100, 2000, 70000])
@pytest.mark.parametrize("dtype", FLOATS)
def test_nan_is_last_and_zeros_are_equal(dtype, length):
    x = np.zeros(length, dtypes.as_dtype(dtype).numpy)
    x[1::2] = -x[1::2]
    x[::10], x[5::10] = np.nan, -np.nan
    nan = np.isnan(comparable(x))
    zeros, nans = np.flatnonzero(~nan), np.flatnonzero(nan)
    np.testing.assert_array_equal(argsort(x), np.concatenate([zeros, nans]))
    np.testing.assert_array_equal(argsort(x, True), np.concatenate([nans, zeros]))


@pytest.mark.parametrize("span", [0, 1, 200, 1 << 20, 1 << 33, 1 << 45, 1 << 62])
@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_ranges_of_wide_integers(dtype, span):
    """Few bits take one word per element, many are sorted in two halves."""
    for length in (1000, 70000):
        x = np.random.default_rng(0).integers(0, span, length, endpoint=True).astype(dtype)
        check(x)
        check(x * x.dtype.type(2) + x.dtype.type(11))
        if dtype == "int64":
            check(x - (span >> 1))


def test_presorted_and_periodic_rows():
    for length in (100, 5000, 70000):
        up = np.arange(length, dtype=np.float64)
        for x in (up, up[::-1], up % 7, np.ones(length)):
            check(x)


@given(
    st.sampled_from([d for d in REAL if d != "bfloat16"]).flatmap(
        lambda dtype: arrays.arrays(
            dtype, arrays.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=200)
        )
    )
)
def test_any_array(x):
    check(x)


@pytest.mark.parametrize("length", [64, 3000, 100000])
def test_result_does_not_depend_on_threads(length):
    x = random("float32", 2, length)
    before = native.get_threads()
    try:
        found = set()
        for threads in (1, 2, 3, 1):
            native.set_threads(threads)
            found.add(argsort(x).tobytes())
    finally:
        native.set_threads(before)
    assert len(found) == 1


def search(x: np.ndarray, values: np.ndarray, side: str) -> np.ndarray:
    dtype = dtypes.as_dtype(x.dtype.name)
    program = searchsorted_program(
        dtype, x.size, strides(x)[0], values.shape, strides(values), side
    )
    return np.frombuffer(program(buffer(x), buffer(values)), np.int64).reshape(values.shape)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("dtype", REAL)
def test_searchsorted(dtype, side):
    for length in (0, 1, 2, 3, 100, 1023, 1024, 5000):
        x = random(dtype, length)
        x = x[expected_order(x, False)]
        for values in (random(dtype, 1), random(dtype, 77), random(dtype, 5, 4, 3), x):
            expected = np.searchsorted(comparable(x), comparable(values), side)
            np.testing.assert_array_equal(search(x, values, side), expected)


@pytest.mark.parametrize("side", ["left", "right"])
def test_searchsorted_strides(side):
    wide = np.sort(random("float64", 900))
    values = random("float64", 6, 50, 2)
    for x in (wide[::3], np.sort(random("float64", 40))[::-1][::-1]):
        for v in (values[..., 0], values.T, values[::-1, ::7], np.full(1, 3.0)):
            np.testing.assert_array_equal(search(x, v, side), np.searchsorted(x, v, side))
    assert search(wide, values[:0], side).shape == (0, 50, 2)


def test_misuse():
    with pytest.raises(DTypeError, match="complex64"):
        argsort_program(dtypes.complex64, (), (), 3, 1)
    with pytest.raises(DTypeError, match="complex64"):
        searchsorted_program(dtypes.complex64, 3, 1, (2,), (1,))
    with pytest.raises(ShapeError, match=str(2**32)):
        argsort_program(dtypes.int8, (), (), 2**32, 1)
    with pytest.raises(ValueError, match="middle"):
        searchsorted_program(dtypes.int8, 3, 1, (2,), (1,), "middle")
