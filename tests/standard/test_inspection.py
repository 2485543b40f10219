"""The inspection API of the Array API standard, and what the standard says of shapes and axes."""

from __future__ import annotations

import numpy as np
import pytest

import pullback as pb
from pullback.core import avals, dtypes
from pullback.runtime.cpu.target import CpuRuntime

INFO = pb.__array_namespace_info__()
STANDARD = {
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float32", "float64", "complex64", "complex128",
}  # fmt: skip


class NarrowRuntime(CpuRuntime):
    """A device without double precision."""

    dtypes = tuple(d for d in dtypes.ALL if d not in (pb.float64, pb.complex128))


@pytest.fixture
def narrow():
    avals.register_runtime("narrow", lambda index: NarrowRuntime())
    yield pb.device("narrow")
    avals._loaders.pop("narrow")
    avals._devices.pop(("narrow", 0))


def test_dtypes_are_those_of_the_standard():
    assert set(INFO.dtypes()) == STANDARD
    assert all(INFO.dtypes()[name] is getattr(pb, name) for name in STANDARD)
    assert set(INFO.dtypes(kind="real floating")) == {"float32", "float64"}
    assert set(INFO.dtypes(kind=("bool", "complex floating"))) == {
        "bool",
        "complex64",
        "complex128",
    }


def test_dtypes_are_those_of_the_device(narrow):
    assert set(INFO.dtypes(device=narrow)) == STANDARD - {"float64", "complex128"}
    assert set(INFO.dtypes(device="cpu")) == STANDARD
    with narrow:
        assert set(INFO.dtypes(kind="real floating")) == {"float32"}


def test_a_dtype_is_no_string_but_equals_its_name():
    """The suite of the standard wants no strings; NumPy takes a DType all the same."""
    for d in dtypes.ALL:
        assert not isinstance(d, str) and not isinstance(pb.zeros(1, dtype=d).dtype, str)
        assert d == d.name and d.name == d and hash(d) == hash(d.name) and d != "other"
        assert d == d.numpy and d != np.dtype("S3") and d != 7
        assert np.zeros(2, dtype=d).dtype == d.numpy  # pyright: ignore[reportArgumentType, reportCallIssue]


def test_devices_are_those_that_are_there(narrow):
    known = {"cpu", "cuda", "webgpu", "narrow"}
    assert {device.kind for device in INFO.devices()} <= known
    assert INFO.devices()[0] is pb.device("cpu") and INFO.devices()[-1] is narrow
    for device in INFO.devices():
        assert pb.zeros(2, device=device).device is device


@pytest.mark.parametrize("method", ["dtypes", "default_dtypes"])
def test_an_unknown_device_is_an_error(method: str):
    with pytest.raises(pb.DeviceError, match="unknown device"):
        getattr(INFO, method)(device="abacus")


def test_default_dtypes_are_what_functions_return(narrow):
    for device in INFO.devices():
        named = INFO.default_dtypes(device=device)
        assert pb.ones(2, device=device).dtype is named["real floating"]
        assert pb.asarray([1j], device=device).dtype is named["complex floating"]
        assert pb.arange(2, device=device).dtype is named["integral"]
        assert pb.argmax(pb.ones(2, device=device)).dtype is named["indexing"]


def test_versions_of_the_standard():
    x = pb.ones(2)
    assert pb.__array_api_version__ == "2025.12"
    assert x.__array_namespace__() is x.__array_namespace__(api_version="2025.12") is pb
    with pytest.raises(ValueError, match="unknown version"):
        x.__array_namespace__(api_version="2031.12")


def test_a_bad_axis_is_an_index_error_too():
    """As NumPy's AxisError, which is a ValueError and an IndexError."""
    x = pb.ones((2, 3))
    for call in (
        lambda: pb.sum(x, axis=2),
        lambda: pb.sort(x, axis=-3),
        lambda: pb.expand_dims(x, axis=4),
        lambda: pb.squeeze(x, axis=2),
        lambda: pb.concat([x, x], axis=2),
        lambda: pb.stack([x, x], axis=4),
        lambda: pb.permute_dims(x, (0, 2)),
        lambda: pb.moveaxis(x, 0, 2),
        lambda: pb.roll(x, 1, axis=2),
        lambda: pb.flip(x, axis=2),
        lambda: pb.take(x, pb.asarray([0]), axis=2),
        lambda: pb.vecdot(x, x, axis=-3),
        lambda: pb.tensordot(x, x, axes=((2,), (0,))),
        lambda: pb.cumulative_sum(x, axis=2),
        lambda: pb.diff(x, axis=2),
        lambda: pb.repeat(x, 2, axis=2),
        lambda: pb.unstack(x, axis=2),
        lambda: pb.count_nonzero(x, axis=2),
        lambda: pb.nn.softmax(x, 2),
    ):
        with pytest.raises(pb.AxisError, match="axis") as caught:
            call()
        assert isinstance(caught.value, IndexError) and isinstance(caught.value, pb.ShapeError)


def test_broadcast_shapes():
    assert pb.broadcast_shapes() == ()
    assert pb.broadcast_shapes((2, 1), (3,)) == (2, 3)
    assert pb.broadcast_shapes((0, 1), (1, 4), 1) == (0, 4)
    with pytest.raises(ValueError, match="do not broadcast"):
        pb.broadcast_shapes((2,), (3,))


def test_sequences_of_arrays_are_tuples():
    x, y = pb.ones(2), pb.ones(3)
    assert type(pb.meshgrid(x, y)) is type(pb.broadcast_arrays(x, x)) is tuple
    assert pb.meshgrid() == pb.broadcast_arrays() == ()


def test_masks_of_no_elements():
    """Each size of a mask is that of its axis, or 0."""
    x = pb.tensor(np.arange(6.0).reshape(2, 3))
    for shape, rest in (((0,), (3,)), ((2, 0), ()), ((0, 3), ()), ((0, 0), ())):
        assert x[pb.zeros(shape, dtype=pb.bool)].shape == (0, *rest)
    assert pb.ones((2, 0, 3))[pb.ones((2, 0), dtype=pb.bool)].shape == (0, 3)
    for shape in ((1,), (3,), (0, 2), (2, 2), (0, 3, 0)):
        with pytest.raises(IndexError):
            x[pb.zeros(shape, dtype=pb.bool)]
    x[pb.zeros((0,), dtype=pb.bool)] = 7.0
    assert x.tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]


def test_numbers_take_the_dtype_of_what_they_are_searched_in():
    edges = pb.tensor([2.1, 2.2, 2.3], dtype="float64")
    assert pb.searchsorted(edges, 2.2).item() == 1  # float32(2.2) lies above it
    assert pb.isin(2.2, edges).item() and pb.isin(edges, 2.2).tolist() == [False, True, False]
    assert pb.isin(pb.tensor([3], dtype="uint64"), 3).tolist() == [True]


def test_integers_keep_all_their_digits():
    """NumPy makes float64 of a list that holds integers on both sides of 2**63."""
    large = 2**63 + 1
    for values in ([large], [1, large], [[0, large], [True, 2]]):
        x = pb.asarray(values, dtype="uint64")
        assert x.tolist() == np.array(values, object).astype(np.uint64).tolist()
        assert pb.asarray(values).dtype is pb.uint64 and pb.asarray(values).tolist() == x.tolist()
    for values, dtype in (([-1, large], None), ([2**64], None), ([300], "uint8"), ([-1], "uint8")):
        with pytest.raises(pb.DTypeError, match="does not fit"):
            pb.asarray(values, dtype=dtype)
    assert pb.asarray([2**70], dtype="float64").tolist() == [2.0**70]


def test_nothing_is_equal_to_nan():
    x = pb.tensor([np.nan, 1.0])
    assert pb.isin(x, x).tolist() == [False, True]
    z = pb.tensor([complex(np.nan, 1), complex(1, np.nan), 1 + 1j])
    assert pb.isin(z, z).tolist() == [False, False, True]
    assert pb.unique_values(pb.concat([z, z])).shape == (5,)
    assert pb.unique_counts(pb.concat([z, z])).counts.tolist() == [2, 1, 1, 1, 1]
