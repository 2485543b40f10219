"""The Tensor: construction, promotion, operators, indexing, conversion, printing, bad input."""

from __future__ import annotations

import copy
import operator
import pickle

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import pullback as pb
from pullback.core import dtypes as dt

# -- construction and promotion --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "dtype", "shape"),
    [
        (1.5, pb.float32, ()),
        (True, pb.bool, ()),
        (3, pb.int64, ()),
        (1j, pb.complex64, ()),
        ([[1, 2], [3, 4]], pb.int64, (2, 2)),
        ([1, 2.5], pb.float32, (2,)),
        ([], pb.float32, (0,)),
        ([[], []], pb.float32, (2, 0)),
        (np.zeros((2, 3)), pb.float64, (2, 3)),
        (np.float16(2), pb.float16, ()),
        (np.zeros(3, ml_dtypes.bfloat16), pb.bfloat16, (3,)),
        (range(4), pb.int64, (4,)),
    ],
)
def test_construction(data, dtype, shape):
    x = pb.tensor(data)
    assert (x.dtype, x.shape, x.ndim, x.size) == (dtype, shape, len(shape), int(np.prod(shape)))


@pytest.mark.parametrize(
    ("data", "error", "match"),
    [
        ([[1.0], [1.0, 2.0]], pb.ShapeError, "tensor: the nested lists are ragged"),
        ("abc", pb.DTypeError, "tensor: expected an array"),
        (object(), pb.DTypeError, "tensor: expected an array"),
        (np.array(["a"]), pb.DTypeError, "tensor: elements must be numbers"),
        (2**70, pb.DTypeError, "does not fit int64"),
    ],
)
def test_bad_construction(data, error, match):
    with pytest.raises(error, match=match):
        pb.tensor(data)


def test_unknown_device_and_dtype():
    with pytest.raises(pb.DeviceError, match="device: unknown device, got 'tpu'"):
        pb.tensor([1.0], device="tpu")
    with pytest.raises(pb.DTypeError, match="tensor: unknown dtype"):
        pb.tensor([1.0], dtype="float31")


def test_data_is_copied_and_results_are_read_only():
    a = np.array([1.0, 2.0])
    x = pb.tensor(a)
    a[0] = 9.0
    assert x.tolist() == [1.0, 2.0]
    with pytest.raises(ValueError, match="read-only"):
        x.numpy()[0] = 3.0


# The table of the standard, for all pairs of real dtypes it defines.
def _expected(a: np.dtype, b: np.dtype) -> np.dtype | None:
    kinds = {a.kind, b.kind}
    if "b" in kinds and kinds != {"b"}:
        return None
    if kinds in ({"i", "u"},) and np.dtype("uint64") in (a, b):
        return None
    if kinds & {"i", "u"} and kinds & {"f", "c"}:
        return None
    return np.promote_types(a, b)


@pytest.mark.parametrize("a", dt.ALL, ids=lambda d: d.name)
@pytest.mark.parametrize("b", dt.ALL, ids=lambda d: d.name)
def test_promotion_is_the_standards(a, b):
    if pb.bfloat16 in (a, b):
        return
    expected = _expected(a.numpy, b.numpy)
    if expected is not None:
        assert dt.promote(a, b).numpy == expected
    try:
        assert dt.promote(a, b) is dt.promote(b, a)
    except pb.DTypeError:
        with pytest.raises(pb.DTypeError):
            dt.promote(b, a)


@pytest.mark.parametrize(
    ("array", "number", "dtype"),
    [
        (pb.float32, 1, pb.float32),
        (pb.float16, 1.5, pb.float16),
        (pb.bfloat16, 1.5, pb.bfloat16),
        (pb.int8, 1, pb.int8),
        (pb.int8, 1.5, pb.float32),
        (pb.float32, 1j, pb.complex64),
        (pb.float64, 1j, pb.complex128),
        (pb.complex64, 2.0, pb.complex64),
        (pb.uint8, True, pb.uint8),
    ],
)
def test_python_numbers_are_weak(array, number, dtype):
    x = pb.ones((2,), dtype=array)
    assert (x + number).dtype is dtype
    assert (number + x).dtype is dtype


def test_a_number_that_does_not_fit_is_an_error():
    with pytest.raises(pb.DTypeError, match="300 does not fit uint8"):
        pb.ones((2,), dtype="uint8") + 300


# -- operators -------------------------------------------------------------------------------------

BINARY = [
    operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod,
    operator.pow, operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge,
]  # fmt: skip
BITWISE = [operator.and_, operator.or_, operator.xor, operator.lshift, operator.rshift]


@pytest.mark.parametrize("op", BINARY, ids=lambda f: f.__name__)
def test_operators_and_their_reflections(op):
    a, b = np.array([1.5, 2.0, 3.0]), np.array([2.0, 2.0, 0.5])
    x, y = pb.tensor(a), pb.tensor(b)
    np.testing.assert_allclose(op(x, y).numpy(), op(a, b))
    np.testing.assert_allclose(op(x, 2.0).numpy(), op(a, 2.0))
    np.testing.assert_allclose(op(2.0, y).numpy(), op(2.0, b))
    np.testing.assert_allclose(op(a, y).numpy(), op(a, b))


@pytest.mark.parametrize("op", BITWISE, ids=lambda f: f.__name__)
def test_bitwise_operators(op):
    a, b = np.array([5, 6, 12]), np.array([1, 2, 3])
    np.testing.assert_array_equal(op(pb.tensor(a), pb.tensor(b)).numpy(), op(a, b))
    np.testing.assert_array_equal(op(pb.tensor(a), 2).numpy(), op(a, 2))
    np.testing.assert_array_equal(op(6, pb.tensor(b)).numpy(), op(6, b))


def test_operators_step_back_for_foreign_types():
    class Foreign:
        def __radd__(self, other):
            return "foreign"

    assert pb.tensor([1.0]) + Foreign() == "foreign"
    with pytest.raises(TypeError):
        pb.tensor([1.0]) + "text"  # pyright: ignore[reportOperatorIssue]


def test_in_place_operators_rebind_the_handle():
    x = pb.tensor([1.0, 2.0])
    y, same = x.detach(), x
    x += 1.0
    assert x is same and x.tolist() == [2.0, 3.0] and y.tolist() == [1.0, 2.0]
    with pytest.raises(pb.ShapeError, match="in place"):
        x += pb.ones((3, 2))
    i = pb.tensor([1, 2])
    with pytest.raises(pb.DTypeError, match="in place"):
        i += 0.5


# -- indexing --------------------------------------------------------------------------------------


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_basic_indexing_is_numpys(data):
    shape = data.draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))
    a = np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)
    key = data.draw(hnp.basic_indices(shape, allow_newaxis=True))
    np.testing.assert_array_equal(pb.tensor(a)[key].numpy(), a[key])


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_advanced_indexing_is_numpys(data):
    shape = data.draw(hnp.array_shapes(min_dims=1, max_dims=4, min_side=1, max_side=4))
    a = np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)
    key = _mixed_key(data, shape)
    expected = a[key]
    tensor_key = tuple(pb.tensor(k) if isinstance(k, np.ndarray) else k for k in key)
    np.testing.assert_array_equal(pb.tensor(a)[tensor_key].numpy(), expected)
    values = -np.arange(expected.size, dtype=np.float32).reshape(expected.shape) - 1
    y = pb.tensor(a)
    y[tensor_key] = pb.tensor(values)
    b = a.copy()
    b[key] = values
    assert np.isin(y.numpy(), np.concatenate([a.ravel(), values.ravel()])).all()
    if len(np.unique(np.arange(a.size).reshape(shape)[key])) == expected.size:  # no duplicates
        np.testing.assert_array_equal(y.numpy(), b)


def _mixed_key(data, shape):
    """A tuple of ints, slices, integer arrays, one boolean mask, None and an ellipsis that fits the
    shape.
    """
    index_shape = data.draw(st.sampled_from([(), (3,), (2, 1), (1, 3)]))
    key: list = []
    d = 0
    while d < len(shape):
        kind = data.draw(
            st.sampled_from(["int", "slice", "array", "array", "mask", "none", "stop"])
        )
        n = shape[d]
        if kind == "stop":
            break
        if kind == "none":
            key.append(None)
            continue
        if kind == "int":
            key.append(data.draw(st.integers(-n, n - 1)))
        elif kind == "slice":
            key.append(data.draw(st.slices(n)))
        elif kind == "array":
            key.append(
                data.draw(hnp.arrays(np.int64, index_shape, elements=st.integers(-n, n - 1)))
            )
        elif not any(isinstance(k, np.ndarray) for k in key) and not any(
            isinstance(k, int) for k in key
        ):
            key.append(data.draw(hnp.arrays(np.bool_, (n,))))
            key += [slice(None)] * (len(shape) - d - 1)
            return tuple(key)
        else:
            key.append(slice(None))
        d += 1
    if data.draw(st.booleans()) and d < len(shape):
        key.append(Ellipsis)
    return tuple(key)


def test_masks_of_several_dimensions_and_assignment():
    a = np.arange(12.0).reshape(3, 4)
    mask = a % 3 == 0
    x = pb.tensor(a, requires_grad=True)
    picked = x[pb.tensor(mask)]
    np.testing.assert_array_equal(picked.detach().numpy(), a[mask])
    picked.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), mask.astype(float))
    y = pb.tensor(a)
    y[pb.tensor(mask)] = 0.0
    np.testing.assert_array_equal(y.numpy(), np.where(mask, 0.0, a))
    y[..., ::-2] = pb.tensor([[1.0], [2.0], [3.0]])
    b = np.where(mask, 0.0, a)
    b[..., ::-2] = [[1.0], [2.0], [3.0]]
    np.testing.assert_array_equal(y.numpy(), b)


@pytest.mark.parametrize(
    ("key", "error", "match"),
    [
        (5, IndexError, "out of range"),
        ((0, 0, 0), IndexError, "too many"),
        (1.5, IndexError, "index"),
        ((Ellipsis, Ellipsis), IndexError, "ellipsis"),
        (np.array([True, False]), IndexError, "boolean"),
        ("a", IndexError, "index"),
    ],
)
def test_bad_indices(key, error, match):
    with pytest.raises(error, match=f"(?i)getitem.*{match}"):
        pb.zeros((3, 4))[key]
    with pytest.raises(error, match=f"(?i)setitem.*{match}"):
        pb.zeros((3, 4))[key] = 1.0


def test_assignment_of_the_wrong_shape():
    x = pb.zeros((3, 4))
    with pytest.raises(pb.ShapeError, match="setitem"):
        x[0] = pb.ones((5,))


# -- conversion ------------------------------------------------------------------------------------


def test_numpy_shares_the_memory_that_nobody_else_has():
    x = pb.tensor(np.arange(6.0).reshape(2, 3))
    a = x.numpy()
    assert a.__array_interface__["data"][0] == x._buf.address
    assert not a.flags.writeable
    np.testing.assert_array_equal(np.asarray(x[:, ::-1]), a[:, ::-1])
    del a
    y = x.detach()
    copied = x.numpy()
    assert copied.__array_interface__["data"][0] != x._buf.address
    assert not copied.flags.writeable and y.shape == x.shape
    assert np.asarray(x, dtype=np.float32).dtype == np.float32
    with pytest.raises(pb.GradientError, match=r"numpy: .*detach"):
        pb.tensor([1.0], requires_grad=True).numpy()


def test_dlpack_round_trip_can_be_without_a_copy():
    a = np.arange(6, dtype=np.float32).reshape(2, 3)
    x = pb.from_dlpack(a)
    assert x.numpy().__array_interface__["data"][0] == a.__array_interface__["data"][0]
    b = np.from_dlpack(x, copy=False)
    assert b.__array_interface__["data"][0] == a.__array_interface__["data"][0]
    np.testing.assert_array_equal(np.from_dlpack(x[:, ::2]), a[:, ::2])
    assert x.__dlpack_device__() == (1, 0)


def test_memory_outlives_its_tensor():
    a = (pb.tensor(np.arange(1000.0)) * 2.0).numpy()
    others = [pb.tensor(np.full(1000, -1.0)) for _ in range(10)]
    np.testing.assert_array_equal(a, np.arange(1000.0) * 2.0)
    del others


def test_python_numbers_and_truth():
    assert float(pb.tensor([2.5])) == 2.5 and int(pb.tensor(3)) == 3 and bool(pb.tensor([True]))
    assert [10, 20, 30][pb.tensor(1)] == 20
    assert complex(pb.tensor(1 + 2j)) == 1 + 2j
    with pytest.raises(pb.ShapeError, match="bool: expected a tensor with one element"):
        bool(pb.tensor([1.0, 2.0]))
    with pytest.raises(pb.DTypeError, match="only an integer tensor"):
        range(pb.tensor(1.0))
    assert len(pb.zeros((3, 2))) == 3 and [r.tolist() for r in pb.tensor([[1], [2]])] == [[1], [2]]
    with pytest.raises(TypeError, match="0-d"):
        len(pb.tensor(1.0))


def test_copy_and_pickle():
    x = pb.tensor([1.0, 2.0], requires_grad=True)
    for y in (pickle.loads(pickle.dumps(x)), copy.deepcopy(x)):
        assert y.tolist() == x.tolist() and y.requires_grad and y.dtype is x.dtype
    assert pickle.loads(pickle.dumps(pb.float32)) is pb.float32


@pytest.mark.parametrize(
    ("x", "text"),
    [
        (lambda: pb.tensor([1.0, 2.0]), "tensor([1., 2.], float32, cpu)"),
        (lambda: pb.tensor(3, dtype="int8"), "tensor(3, int8, cpu)"),
        (
            lambda: pb.tensor([1.0], requires_grad=True),
            "tensor([1.], float32, cpu, requires_grad=True)",
        ),
        (
            lambda: pb.tensor([1.0], requires_grad=True) * 2.0,
            "tensor([2.], float32, cpu, grad_fn=<multiply>)",
        ),
    ],
)
def test_repr_shows_values_dtype_device_and_gradient_function(x, text):
    assert repr(x()) == text


def test_array_namespace():
    x = pb.tensor([1.0])
    assert x.__array_namespace__() is pb
    info = pb.__array_namespace_info__()
    assert info.default_dtypes()["real floating"] is pb.float32
    assert str(info.default_device()) == "cpu" and "float64" in info.dtypes(kind="real floating")


def test_default_float_can_be_changed():
    pb.set_default_float("float64")
    try:
        assert pb.tensor([1.0]).dtype is pb.float64
        assert pb.exp(pb.tensor([1])).dtype is pb.float64
    finally:
        pb.set_default_float("float32")
    with pytest.raises(pb.DTypeError, match="float32 or float64"):
        pb.set_default_float("float16")


def test_zero_size_arrays_everywhere():
    x = pb.tensor(np.zeros((0, 3)), requires_grad=True)
    y = (pb.exp(x) * 2.0 + x.sum(axis=0)).sum()
    assert y.item() == 0.0
    y.backward()
    assert x.grad.shape == (0, 3)
    assert (x.detach() @ pb.ones((3, 4), dtype="float64")).shape == (0, 4)
    with pytest.raises(pb.ShapeError, match="max"):
        pb.max(x.detach())
