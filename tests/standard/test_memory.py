"""What the standard says of memory: `copy`, the buffer protocol, and DLPack in all its versions."""

from __future__ import annotations

import array
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.core import dtypes
from pullback.ir import dlpack


def address(x: Any) -> int:
    return x._buf.address


# -- copies ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "memory",
    [
        np.arange(6.0).reshape(2, 3),
        array.array("i", [1, 2, 3]),
        bytearray(b"abc"),
        np.arange(4, dtype=np.int16).reshape(2, 2).data,
    ],
    ids=lambda m: type(m).__name__,
)
def test_asarray_shares_only_when_told_to(memory: Any):
    view = np.asarray(memory)
    copied, shared = pb.asarray(memory), pb.asarray(memory, copy=False)
    assert copied.shape == shared.shape == view.shape
    assert address(copied) != view.__array_interface__["data"][0] == address(shared)
    before = view.copy()
    view[...] = 7
    assert copied.tolist() == before.tolist() and shared.tolist() == view.tolist()


def test_asarray_raises_where_it_would_have_to_copy():
    a = np.arange(6.0).reshape(2, 3)
    refused: list[tuple[Any, dict[str, Any]]] = [
        (a.T, {}),
        (a[:, ::2], {}),
        (a.astype(">f8"), {}),
        (a, {"dtype": pb.float32}),
        (1.0, {}),
        ([1.0], {}),
        (np.float64(1.0), {}),
        (pb.tensor(a), {"dtype": pb.float32}),
    ]
    for obj, options in refused:
        with pytest.raises(pb.CopyError, match=r"^asarray: ") as caught:
            pb.asarray(obj, copy=False, **options)
        assert isinstance(caught.value, ValueError) and isinstance(caught.value, BufferError)


def test_numpy_shares_only_what_can_be_shared():
    x = pb.arange(3)
    assert np.asarray(x, copy=False).__array_interface__["data"][0] == address(x)
    for y, dtype in ((x, np.float32), (pb.ones(3), None), (pb.tensor(1.0), None)):
        with pytest.raises(pb.CopyError, match=r"^__array__"):
            np.asarray(y, dtype=dtype, copy=False)
        assert np.asarray(y, dtype=dtype).tolist() == y.tolist()
    assert np.asarray(pb.zeros((0, 2)), copy=False).shape == (0, 2)


def test_bytes_are_unsigned_integers():
    assert pb.asarray(b"\x01\xff").tolist() == [1, 255]
    assert pb.asarray(b"\x01\xff").dtype is pb.uint8


@pytest.mark.parametrize("obj", ["abc", object(), array.array("u", "abc"), {}])
def test_what_is_no_array_is_refused(obj: Any):
    with pytest.raises(pb.DTypeError):
        pb.asarray(obj)


class OnlyDlpack:
    """An array of another library that speaks DLPack and nothing else."""

    def __init__(self, values: np.ndarray):
        self.values = values

    def __dlpack__(self, **options: Any) -> Any:
        return self.values.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def test_tensor_takes_dlpack():
    values = np.arange(3.0)
    x, y = pb.tensor(OnlyDlpack(values)), pb.asarray(OnlyDlpack(values), copy=False)
    values[0] = 7
    assert x.tolist() == [0.0, 1.0, 2.0] and y.tolist() == [7.0, 1.0, 2.0]


def test_reshape_raises_where_it_would_have_to_copy():
    x = pb.tensor(np.arange(6.0).reshape(2, 3))
    same = pb.reshape(x, (3, 2), copy=False)
    assert address(same) == address(x)
    with pytest.raises(pb.CopyError, match=r"^reshape: .*strides"):
        pb.reshape(x.T, (6,), copy=False)
    assert pb.reshape(x.T, (6,)).tolist() == pb.reshape(x.T, (6,), copy=True).tolist()
    assert pb.jit(lambda a: pb.reshape(a, (6,), copy=False))(x).shape == (6,)


# -- DLPack ----------------------------------------------------------------------------------------


class Producer:
    """Gives one capsule."""

    def __init__(self, capsule: Any):
        self.capsule = capsule

    def __dlpack__(self, **options: Any) -> Any:
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


@pytest.mark.parametrize("copy", [None, True, False])
@pytest.mark.parametrize("version", [None, (0, 6), (0, 8), (1, 0), (1, 3), (2, 0)])
@pytest.mark.parametrize("dtype", [d.name for d in dtypes.ALL])
def test_a_capsule_has_the_version_that_is_understood(dtype: str, version: Any, copy: bool | None):
    x = pb.astype(pb.tensor([0, 1, 1]), dtype)
    capsule = x.__dlpack__(max_version=version, copy=copy, dl_device=(1, 0), stream=None)
    versioned = version is not None and version >= (1, 0)
    assert dlpack._name_of(capsule) == (b"dltensor_versioned" if versioned else b"dltensor")
    contents = dlpack._contents(capsule)
    assert (contents.tensor.bits, contents.tensor.lanes) == (8 * x.itemsize, 1)
    assert (contents.tensor.data == address(x)) == (copy is False)
    if versioned:
        assert bool(contents.flags & dlpack.IS_COPIED) == (copy is not False)

    back = pb.from_dlpack(Producer(capsule))
    assert back.dtype is x.dtype and back.tolist() == x.tolist()
    with pytest.raises(pb.ExchangeError, match="fresh DLPack capsule"):
        pb.from_dlpack(Producer(capsule))


def test_an_export_that_is_not_possible_says_why():
    x = pb.tensor([1.0, 2.0])
    with pytest.raises(BufferError, match="goes to the CPU"):
        x.__dlpack__(dl_device=(2, 0))
    with pytest.raises(pb.DeviceError, match="no streams"):
        x.__dlpack__(stream=1)
    with pytest.raises(pb.DeviceError, match="no streams"):
        x.to_device("cpu", stream=1)
    other = x.detach()
    with pytest.raises(BufferError, match="belongs to others"):
        x.__dlpack__(copy=False)
    assert other.tolist() == [1.0, 2.0]


def test_read_only_memory_stays_read_only():
    values = np.arange(3.0)
    values.flags.writeable = False
    x = pb.from_dlpack(values)
    with pytest.raises(pb.CopyError):
        x.__dlpack__(copy=False)
    for y in (pb.arange(3), pb.astype(pb.arange(3), pb.bfloat16)):
        with pytest.raises(ValueError):
            y.numpy().flags.writeable = True


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 2), (0, 3)])
def test_a_constant_can_be_shared(shape: tuple[int, ...]):
    """It takes no memory, so it is given some: what is written goes to this tensor only."""
    x = pb.ones(shape)
    np.from_dlpack(x, copy=False)[...] = 7
    assert x.tolist() == np.full(shape, 7.0).tolist()
    assert pb.ones(shape).tolist() == np.ones(shape).tolist()
    assert (pb.tensor([1.0]) + 1.0).tolist() == [2.0]


def test_from_dlpack_copies_only_when_it_may():
    values = np.arange(6.0).reshape(2, 3)
    shared, copied = pb.from_dlpack(values, copy=False), pb.from_dlpack(values, copy=True)
    strided = pb.from_dlpack(values[:, ::2])
    with pytest.raises(pb.CopyError, match="row-major"):
        pb.from_dlpack(values[:, ::2], copy=False)
    values[...] = 0
    assert shared.tolist() == values.tolist()
    assert copied.tolist() == [[0, 1, 2], [3, 4, 5]] and strided.tolist() == [[0, 2], [3, 5]]


def test_jax_takes_constants_and_bfloat16():
    jax = pytest.importorskip("jax")
    got = jax.dlpack.from_dlpack(pb.ones(3))
    assert np.asarray(got).tolist() == [1.0, 1.0, 1.0]
    narrow = jax.dlpack.from_dlpack(pb.astype(pb.arange(4), pb.bfloat16))
    assert narrow.dtype == jax.numpy.bfloat16 and narrow.tolist() == [0.0, 1.0, 2.0, 3.0]
    back = pb.from_dlpack(narrow)
    assert back.dtype is pb.bfloat16 and back.tolist() == [0.0, 1.0, 2.0, 3.0]
    turned = jax.dlpack.from_dlpack(pb.tensor([[1.0, 2.0], [3.0, 4.0]]).T)
    assert turned.tolist() == [[1.0, 3.0], [2.0, 4.0]]


def test_torch_and_bfloat16():
    torch = pytest.importorskip("torch")
    x = pb.astype(pb.arange(4), pb.bfloat16)
    t = torch.from_dlpack(x)
    assert t.dtype is torch.bfloat16 and t.tolist() == [0.0, 1.0, 2.0, 3.0]
    shared = torch.from_dlpack(x, copy=False)
    shared[0] = 5
    assert x.tolist() == [5.0, 1.0, 2.0, 3.0]
    back = pb.from_dlpack(shared)
    assert back.dtype is pb.bfloat16 and address(back) == shared.data_ptr()
    with pytest.raises(pb.DTypeError, match="kind"):
        pb.from_dlpack(torch.ones(2).to(torch.float8_e4m3fn))
