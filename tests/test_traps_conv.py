"""What earlier systems got wrong in convolution and pooling, one test per trap."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import pullback as pb
from pullback.autodiff.check import check_grad
from pullback.ir.op import REGISTRY

FAMILY = ("primitive.conv", "primitive.conv_dx", "primitive.conv_dw")


def real(*shape: int, seed: int = 0) -> pb.Tensor:
    return pb.tensor(np.random.default_rng((seed, *shape)).standard_normal(shape))


def loops(x: np.ndarray, w: np.ndarray, stride: int, pads: tuple[int, int]) -> np.ndarray:
    """A 1-D convolution, one output at a time."""
    x = np.pad(x, ((0, 0), (0, 0), pads))
    places = range(0, x.shape[2] - w.shape[2] + 1, stride)
    columns = [np.einsum("nck,ock->no", x[:, :, i : i + w.shape[2]], w) for i in places]
    return np.stack(columns, -1)


def test_input_gradient_uses_the_weight_the_right_way_round():
    """Trap: the transposed weight, which fits if both channel counts are equal."""
    for outs in (3, 5):
        x, w = real(2, 3, 6), real(outs, 3, 2)
        g = real(2, outs, 5, seed=1)
        _, pull = pb.vjp(lambda x, w=w: pb.nn.conv1d(x, w), x)
        (dx,) = pull(g)
        expected = np.zeros(x.shape)
        for q, k in itertools.product(range(5), range(2)):
            expected[:, :, q + k] += np.einsum("no,oc->nc", g.numpy()[:, :, q], w.numpy()[:, :, k])
        np.testing.assert_allclose(dx.numpy(), expected, rtol=1e-12)


def test_same_padding_knows_the_stride_both_ways():
    """Trap: "same" padding with a stride forward and without it backward: L=8, k=3, stride=2."""
    x, w = real(1, 2, 8), real(3, 2, 3)
    out = pb.nn.conv1d(x, w, stride=2, padding="same")
    np.testing.assert_allclose(out.numpy(), loops(x.numpy(), w.numpy(), 2, (0, 1)), rtol=1e-12)
    assert out.shape == (1, 3, 4)
    check_grad(lambda x, w: pb.nn.conv1d(x, w, stride=2, padding="same"), x, w, order=2)


def test_backward_is_a_few_kernels_whatever_the_kernel_size():
    """Trap: backward as a host loop over kernel positions, output positions and groups."""

    def equations(kernel: int) -> int:
        x, w = real(1, 4, 20), real(4, 2, kernel)

        def gradient(x: pb.Tensor, w: pb.Tensor):
            return pb.grad(lambda x, w: pb.nn.conv1d(x, w, groups=2).sum(), (0, 1))(x, w)

        return len(pb.trace(gradient)(x, w).equations)

    assert equations(3) == equations(15)
    assert equations(3) < 8


def test_the_family_is_closed_and_complete():
    """Trap: first order only. Every operand of the family has a rule, made of the family."""
    for name in FAMILY:
        op = REGISTRY[name]
        assert set(op.vjp) == set(op.operands)
        assert op.jvp == "multilinear"


OPTIONS = [
    {"stride": 2},
    {"padding": ((2, 1),)},
    {"dilation": 2},
    {"groups": 2},
    {"groups": 4, "padding": 1},  # depthwise
    {"stride": 2, "dilation": 3, "padding": 3},
    {"stride": 3, "padding": 1, "groups": 2, "dilation": 2},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("kernel", [2, 3])  # even kernels too
@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
def test_third_order_of_every_option(options, kernel, layout):
    """Trap: stride only, with no padding, dilation or groups; even kernels forgotten."""
    x = real(1, 6, 4) if layout == "channels_last" else real(1, 4, 6)
    w, b = real(4, 4 // options.get("groups", 1), kernel), real(4)
    check_grad(
        lambda x, w, b: pb.nn.conv1d(x, w, b, layout=layout, **options) ** 2, x, w, b, order=3
    )


def test_third_order_of_a_transposed_convolution_with_output_padding():
    """Trap: transposed convolutions that lose output_padding in their derivatives."""
    y, w = real(1, 2, 3), real(2, 2, 3)
    check_grad(
        lambda y, w: pb.nn.conv_transpose1d(y, w, stride=2, padding=1, output_padding=1) ** 2,
        y,
        w,
        order=3,
    )


def test_bias_gradient_sums_batch_and_places():
    """Trap: the gradient of the bias."""
    x, w, b = real(2, 3, 4, 4), real(5, 3, 3, 3), real(5)
    g = real(2, 5, 2, 2)
    _, pull = pb.vjp(lambda b: pb.nn.conv2d(x, w, b), b)
    np.testing.assert_allclose(pull(g)[0].numpy(), g.numpy().sum((0, 2, 3)), rtol=1e-12)


def test_an_empty_batch_has_empty_and_zero_gradients():
    """Trap: an empty batch."""
    for groups in (1, 2):
        x, w = pb.zeros((0, 2, 5, 5)), pb.ones((4, 2 // groups, 3, 3))
        out, pull = pb.vjp(lambda x, w, groups=groups: pb.nn.conv2d(x, w, groups=groups), x, w)
        assert out.shape == (0, 4, 3, 3)
        dx, dw = pull(out)
        assert dx.shape == x.shape and not dw.numpy().any()


@pytest.mark.parametrize("rank", [1, 2, 5, 6])
def test_a_wrong_rank_is_an_error(rank):
    """Trap: a wrong rank that returns success, with no gradient."""
    with pytest.raises(pb.ShapeError, match="conv2d: takes 4 dimensions"):
        pb.nn.conv2d(pb.ones((1,) * rank), pb.ones((1, 1, 1, 1)))


def test_adaptive_windows_end_at_a_ceil():
    """Trap: adaptive pooling with a floor at the end of its windows."""
    x = pb.tensor([[[1.0, 2.0, 4.0, 8.0, 16.0]]])
    means = pb.nn.adaptive_avg_pool1d(x, 3).numpy()
    np.testing.assert_allclose(means, [[[1.5, 14.0 / 3, 12.0]]], rtol=1e-6)
    assert pb.nn.adaptive_max_pool1d(x, 3).tolist() == [[[2.0, 8.0, 16.0]]]


def test_max_pool_gives_its_gradient_to_one_element():
    """Trap: a gradient for every element that equals the maximum, or none for NaN."""
    x = pb.tensor([[[3.0, 3.0, 1.0, 3.0]]], requires_grad=True)
    pb.nn.max_pool1d(x, 4).sum().backward()
    assert x.grad.tolist() == [[[1.0, 0.0, 0.0, 0.0]]]
    assert np.isnan(pb.nn.max_pool1d(pb.tensor([[[1.0, float("nan"), 2.0]]]), 3).numpy()).all()


def test_lp_pool_at_zero_has_a_gradient_of_zero():
    """Trap: the derivative of a root at zero."""
    x = pb.tensor(np.zeros((1, 1, 4)), requires_grad=True)
    pb.nn.lp_pool1d(x, 2, 2).sum().backward()
    assert x.grad.tolist() == [[[0.0, 0.0, 0.0, 0.0]]]


def test_deformable_convolution_without_offsets_is_a_convolution():
    """Trap: offsets as (x, y) in place of (y, x), or a mask that is forgotten."""
    x, w = real(1, 2, 5, 6), real(3, 2, 3, 2)
    zero = pb.zeros((1, 12, 3, 5), dtype="float64")
    plain = pb.nn.deform_conv2d(x, zero, w)
    np.testing.assert_allclose(plain.numpy(), pb.nn.conv2d(x, w).numpy(), rtol=1e-12)
    down = np.zeros((1, 6, 2, 3, 5))
    down[:, :, 0] = 1  # one row further
    moved = pb.nn.deform_conv2d(x, pb.tensor(down.reshape(1, 12, 3, 5)), w)
    np.testing.assert_allclose(
        moved.numpy()[:, :, :2], pb.nn.conv2d(x, w).numpy()[:, :, 1:], rtol=1e-12
    )
    half = pb.nn.deform_conv2d(x, zero, w, mask=pb.full((1, 6, 3, 5), 0.5, dtype="float64"))
    np.testing.assert_allclose(half.numpy(), plain.numpy() / 2, rtol=1e-12)
