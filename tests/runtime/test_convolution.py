"""Convolution and pooling beyond one tile: against NumPy, in any strides, with equal bits."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view

import pullback as pb

TOLERANCE = {"float32": 3e-6, "float64": 1e-14}
LAYOUTS = ("channels_first", "channels_last")


def random(dtype: str, *shape: int) -> np.ndarray:
    return np.random.default_rng(shape).standard_normal(shape).astype(dtype)


def windows(x: np.ndarray, kernel, stride: int, pad: int, filler: float = 0.0) -> np.ndarray:
    """(batch, channels, *places, *kernel) of an array with channels first."""
    axes = tuple(range(2, x.ndim))
    x = np.pad(x, [(0, 0), (0, 0), *[(pad, pad)] * len(axes)], constant_values=filler)
    cut = (..., *[slice(None, None, stride)] * len(axes), *[slice(None)] * len(axes))
    return sliding_window_view(x, kernel, axes)[cut]


# Batches, channels and pixels that fill several tiles, blocks, panels and parts, with remainders.
SHAPES = [
    ((3, 5, 41, 37), (19, 5, 3, 3), 1, 1),
    ((2, 70, 9, 11), (33, 70, 3, 2), 2, 1),
    ((2, 3, 30, 31), (7, 3, 7, 7), 2, 3),
    ((2, 300, 7, 7), (40, 300, 1, 1), 1, 0),
    ((1, 20, 600), (130, 20, 5), 1, 2),
    ((1, 4, 9, 10, 11), (6, 4, 3, 3, 3), 1, 1),
    ((1, 2, 6, 6), (1500, 2, 2, 2), 1, 0),
]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("x", "w", "stride", "pad"), SHAPES)
def test_the_family_agrees_with_numpy(x, w, stride, pad, layout, dtype):
    a, b = random(dtype, *x), random(dtype, *w)
    axes = len(x) - 2
    cut = windows(a.astype("float64"), w[2:], stride, pad)
    letters = "xyz"[:axes], "ijk"[:axes]
    expected = np.einsum(f"nc{letters[0]}{letters[1]},oc{letters[1]}->no{letters[0]}", cut, b)
    scale = np.sqrt(np.prod(w[1:]))
    g = random(dtype, *expected.shape)
    moved = (lambda v: np.moveaxis(v, 1, -1)) if layout == "channels_last" else (lambda v: v)
    dense = np.ascontiguousarray
    out, pull = pb.vjp(
        lambda x, w: pb.primitive.conv(x, w, stride=stride, padding=pad, layout=layout),
        pb.tensor(dense(moved(a))),
        pb.tensor(b),
    )
    dx, dw = pull(pb.tensor(dense(moved(g))))
    tolerance = TOLERANCE[dtype]
    np.testing.assert_allclose(out.numpy(), moved(expected), rtol=0, atol=20 * tolerance * scale)
    by_weight = np.einsum(f"nc{letters[0]}{letters[1]},no{letters[0]}->oc{letters[1]}", cut, g)
    many = np.sqrt(x[0] * np.prod(g.shape[2:]))
    np.testing.assert_allclose(dw.numpy(), by_weight, rtol=0, atol=20 * tolerance * many)
    # T is one number: the input's gradient is checked by it
    form = np.vdot(expected, g)
    assert np.vdot(dx.numpy().astype("float64"), moved(a)) == pytest.approx(
        form, abs=200 * tolerance * np.sqrt(g.size) * scale
    )


def numpy_gradients(x, w, g, stride, pad, groups):
    """Gradients of a 2-D convolution by loops over groups and the kernel, channels first."""
    dx = np.zeros((*x.shape[:2], *(n + 2 * pad for n in x.shape[2:])))
    padded = np.pad(x, [(0, 0), (0, 0), (pad, pad), (pad, pad)]).astype("float64")
    dw = np.zeros(w.shape)
    ins, outs = w.shape[1], w.shape[0] // groups
    for group, i, j in np.ndindex(groups, *w.shape[2:]):
        a, o = slice(group * ins, (group + 1) * ins), slice(group * outs, (group + 1) * outs)
        rows = slice(i, i + (g.shape[2] - 1) * stride + 1, stride)
        columns = slice(j, j + (g.shape[3] - 1) * stride + 1, stride)
        dx[:, a, rows, columns] += np.einsum("noyx,oc->ncyx", g[:, o], w[o, :, i, j])
        dw[o, :, i, j] = np.einsum("noyx,ncyx->oc", g[:, o], padded[:, a, rows, columns])
    return dx[:, :, pad : pad + x.shape[2], pad : pad + x.shape[3]], dw


# Strides with every residue or with some that no position reaches, groups of one and of several
# channels, many channels on few pixels, and products of matrices.
GRADIENTS = [
    ((2, 37, 23, 21), (37, 1, 3, 3), 2, 1, 37),
    ((2, 16, 17, 19), (24, 4, 2, 2), 3, 0, 4),
    ((2, 20, 18, 18), (36, 20, 1, 1), 2, 0, 1),
    ((1, 96, 5, 5), (80, 96, 3, 3), 1, 1, 1),
    ((9, 40, 5, 6), (130, 40, 1, 1), 1, 0, 1),
    ((2, 12, 14, 14), (18, 6, 1, 1), 1, 0, 2),
]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("x", "w", "stride", "pad", "groups"), GRADIENTS)
def test_gradients_agree_with_numpy(x, w, stride, pad, groups, layout, dtype):
    a, b = random(dtype, *x), random(dtype, *w)
    last = layout == "channels_last"
    moved = (lambda v: np.ascontiguousarray(np.moveaxis(v, 1, -1))) if last else (lambda v: v)
    options = {"stride": stride, "padding": pad, "groups": groups, "layout": layout}
    out, pull = pb.vjp(
        lambda x, w: pb.primitive.conv(x, w, **options), pb.tensor(moved(a)), pb.tensor(b)
    )
    counts = [(n + 2 * pad - k) // stride + 1 for n, k in zip(x[2:], w[2:], strict=True)]
    g = random(dtype, x[0], w[0], *counts)
    by_input, by_weight = numpy_gradients(a, b, g, stride, pad, groups)
    dx, dw = pull(pb.tensor(moved(g)))
    tolerance = 30 * TOLERANCE[dtype]
    scale = np.sqrt(w[0] // groups * np.prod(w[2:]))
    np.testing.assert_allclose(dx.numpy(), moved(by_input), rtol=0, atol=tolerance * scale)
    many = np.sqrt(x[0] * np.prod(counts))
    np.testing.assert_allclose(dw.numpy(), by_weight, rtol=0, atol=tolerance * many)
    form = np.vdot(by_weight, b)
    assert np.vdot(out.numpy().astype("float64"), moved(g)) == pytest.approx(
        form, abs=10 * tolerance * np.sqrt(g.size) * scale
    )


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("groups", [1, 3, 48])
def test_bits_do_not_depend_on_threads(layout, groups, threads):
    shape = (3, 23, 29, 48) if layout == "channels_last" else (3, 48, 23, 29)
    x, w = (
        pb.tensor(random("float32", *shape)),
        pb.tensor(random("float32", 48, 48 // groups, 3, 3)),
    )

    def everything(x, w):
        out, pull = pb.vjp(
            lambda x, w: pb.nn.conv2d(x, w, padding=1, groups=groups, layout=layout), x, w
        )
        pooled, back = pb.vjp(lambda x: pb.nn.max_pool2d(x, 3, 2, 1, layout=layout), out)
        return (out, *pull(out), pooled, *back(pooled))

    found = []
    for count in (1, 2, 3, 3):
        threads(count)
        found.append([a.numpy() for a in everything(x, w)])
        found.append([a.numpy() for a in pb.jit(everything)(x, w)])
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            assert a.tobytes() == b.tobytes()


def test_operands_in_any_strides():
    x, w = random("float32", 2, 20, 13, 17), random("float32", 24, 20, 3, 3)
    expected = pb.primitive.conv(pb.tensor(x), pb.tensor(w)).numpy()
    turned = pb.permute_dims(pb.tensor(np.ascontiguousarray(x.T)), (3, 2, 1, 0))
    flipped = pb.flip(pb.tensor(np.ascontiguousarray(x[:, :, ::-1])), axis=2)
    other = pb.permute_dims(pb.tensor(np.ascontiguousarray(w.transpose(2, 0, 3, 1))), (1, 3, 0, 2))
    for a in (turned, flipped):
        np.testing.assert_array_equal(pb.primitive.conv(a, other).numpy(), expected)
    ones = pb.broadcast_to(pb.ones(()), (2, 24, 11, 15))
    dx = pb.primitive.conv_dx(ones, pb.tensor(w), size=(13, 17))
    dense = pb.primitive.conv_dx(pb.ones((2, 24, 11, 15)), pb.tensor(w), size=(13, 17))
    np.testing.assert_array_equal(dx.numpy(), dense.numpy())


def test_a_kernel_that_no_stack_holds():
    x, w = random("float32", 1, 9, 40000), random("float32", 2, 9, 39990)
    out = pb.primitive.conv(pb.tensor(x), pb.tensor(w), padding=1).numpy()
    cut = windows(x.astype("float64"), (39990,), 1, 1)
    np.testing.assert_allclose(out, np.einsum("ncxk,ock->nox", cut, w), rtol=0, atol=0.1)
    image = random("float32", 1, 5, 300, 301)
    pooled = pb.primitive.window_max(pb.tensor(image), kernel=(299, 300))
    np.testing.assert_array_equal(pooled.numpy(), windows(image, (299, 300), 1, 0).max((-2, -1)))


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("channels", [1, 8, 21, 100])
def test_window_maxima_agree_with_numpy(channels, layout, dtype):
    x = random(dtype, 2, channels, 33, 26)
    under = windows(x, (3, 2), 2, 1, -np.inf)
    moved = (lambda v: np.moveaxis(v, 1, -1)) if layout == "channels_last" else (lambda v: v)
    a = pb.tensor(np.ascontiguousarray(moved(x)))
    options = {"kernel": (3, 2), "stride": 2, "padding": 1, "layout": layout}
    out = pb.primitive.window_max(a, **options)
    np.testing.assert_array_equal(out.numpy(), moved(under.max((-2, -1))))
    index = pb.primitive.window_argmax(a, **options)
    np.testing.assert_array_equal(pb.primitive.pick(a, index, layout=layout).numpy(), out.numpy())


def test_places_in_any_strides_and_out_of_range():
    x = random("float32", 2, 3, 6, 4)
    index = np.random.default_rng(0).integers(0, 24, (2, 3, 5))
    picked = x.reshape(2, 3, 24)[np.arange(2)[:, None, None], np.arange(3)[:, None], index]
    turned = pb.permute_dims(pb.tensor(np.ascontiguousarray(x.T)), (3, 2, 1, 0))
    np.testing.assert_array_equal(pb.primitive.pick(turned, pb.tensor(index)).numpy(), picked)
    for bad in (24, -1):
        index[1, 2, 3] = bad
        for f in (pb.primitive.pick, pb.jit(pb.primitive.pick)):
            with pytest.raises(IndexError, match=f"pick: index {bad} is out of range"):
                f(pb.tensor(x), pb.tensor(index))
