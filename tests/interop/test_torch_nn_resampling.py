"""Resizing, sampling, rearranging and normalising beside PyTorch, two derivatives included."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb

torch = pytest.importorskip("torch")
F = torch.nn.functional
RNG = np.random.default_rng(5)


def agree(ours: Callable[..., Any], theirs: Callable[..., Any], *arrays: np.ndarray) -> None:
    """Value, gradient, and gradient of the gradient's square, in float64 and float32."""
    for dtype, tolerance in ((np.float64, 1e-9), (np.float32, 2e-4)):
        mine = [pb.tensor(a.astype(dtype)) for a in arrays]
        other = [torch.tensor(a.astype(dtype), requires_grad=True) for a in arrays]
        y = theirs(*other)
        got = ours(*mine)
        scale = float(y.detach().abs().max()) if y.numel() else 1.0
        np.testing.assert_allclose(
            got.numpy(), y.detach().numpy(), rtol=tolerance, atol=tolerance * scale
        )
        w = RNG.normal(size=y.shape).astype(dtype)
        number = tuple(range(len(arrays)))

        mine_w = pb.tensor(w)

        def first(*xs: Any, w: Any = mine_w, number: Any = number) -> Any:
            return pb.grad(lambda *xs: (ours(*xs) ** 2 * w).sum(), number)(*xs)

        def second(*xs: Any, number: Any = number, first: Any = first) -> Any:
            return pb.grad(lambda *xs: sum(((g**2).sum() for g in first(*xs)), 0.0), number)(*xs)

        slopes = torch.autograd.grad(
            (y**2 * torch.tensor(w)).sum(), other, create_graph=True, allow_unused=True
        )
        compare(first(*mine), slopes, tolerance)
        curves = torch.autograd.grad(sum((g**2).sum() for g in slopes), other)
        compare(second(*mine), curves, tolerance * 10)


def compare(ours: Any, theirs: Any, tolerance: float) -> None:
    for a, b in zip(ours, theirs, strict=True):
        scale = max(float(b.detach().abs().max()), 1.0) if b.numel() else 1.0
        np.testing.assert_allclose(
            a.numpy(), b.detach().numpy(), rtol=tolerance, atol=tolerance * scale
        )


RESIZED = [
    ((2, 3, 7), {"size": 11, "mode": "linear"}),
    ((2, 3, 7), {"size": 4, "mode": "linear", "align_corners": True}),
    ((2, 3, 7), {"scale_factor": 1.3, "mode": "linear"}),
    ((2, 3, 7), {"scale_factor": 1.3, "mode": "linear", "recompute_scale_factor": True}),
    ((2, 3, 7), {"size": 5}),
    ((1, 2, 5, 6), {"scale_factor": 2.0, "mode": "nearest"}),
    ((1, 2, 5, 6), {"size": (7, 4), "mode": "nearest-exact"}),
    ((1, 2, 5, 6), {"size": (7, 4), "mode": "bilinear"}),
    ((1, 2, 5, 6), {"size": (7, 4), "mode": "bilinear", "align_corners": True}),
    ((1, 2, 9, 8), {"size": (4, 5), "mode": "bilinear", "antialias": True}),
    ((1, 2, 5, 6), {"size": (7, 4), "mode": "bicubic"}),
    ((1, 2, 5, 6), {"scale_factor": (1.5, 0.6), "mode": "bicubic", "align_corners": True}),
    ((1, 2, 9, 8), {"size": (4, 11), "mode": "bicubic", "antialias": True}),
    ((1, 2, 3, 4, 5), {"size": (4, 3, 7), "mode": "trilinear"}),
    ((1, 2, 5, 6), {"size": (2, 4), "mode": "area"}),
    ((1, 1, 700), {"size": 900, "mode": "linear"}),
]


@pytest.mark.parametrize(("shape", "options"), RESIZED, ids=lambda c: str(c))
def test_interpolate(shape, options):
    x = RNG.normal(size=shape)
    agree(lambda x: pb.nn.interpolate(x, **options), lambda x: F.interpolate(x, **options), x)
    last = pb.nn.interpolate(pb.tensor(np.moveaxis(x, 1, -1)), **options, layout="channels_last")
    first = pb.nn.interpolate(pb.tensor(x), **options)
    np.testing.assert_allclose(np.moveaxis(last.numpy(), -1, 1), first.numpy(), rtol=1e-12)


PADS = [
    ((2, 3), (1, 2), "constant"), ((2, 3, 4), (1, -1, 0, 2), "constant"),
    ((1, 2, 5), (3, 2), "reflect"), ((1, 2, 4, 5), (1, 2, 3, 0), "reflect"),
    ((1, 2, 3, 4, 5), (1, 2, 1, 0, 2, 1), "replicate"), ((1, 2, 4, 5), (2, 1, 0, 3), "circular"),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "width", "mode"), PADS, ids=str)
def test_pad(shape, width, mode):
    agree(
        lambda x: pb.nn.pad(x, width, mode),
        lambda x: F.pad(x, width, mode),
        RNG.normal(size=shape),
    )


def test_rearranging():
    x = RNG.normal(size=(2, 8, 4, 6))
    agree(lambda x: pb.nn.pixel_shuffle(x, 2), lambda x: F.pixel_shuffle(x, 2), x)
    agree(lambda x: pb.nn.pixel_unshuffle(x, 2), lambda x: F.pixel_unshuffle(x, 2), x)
    got = pb.nn.channel_shuffle(pb.tensor(x), 4).numpy()
    np.testing.assert_array_equal(got, F.channel_shuffle(torch.tensor(x), 4).numpy())


NORMS: list[tuple[Any, Any, tuple]] = [
    (
        lambda x, w, b: pb.nn.layer_norm(x, (3, 4), w, b),
        lambda x, w, b: F.layer_norm(x, (3, 4), w, b),
        ((2, 3, 4), (3, 4), (3, 4)),
    ),
    (
        lambda x, w: pb.nn.rms_norm(x, (4,), w, 1e-5),
        lambda x, w: F.rms_norm(x, (4,), w, 1e-5),
        ((5, 4), (4,)),
    ),
    (
        lambda x, w, b: pb.nn.group_norm(x, 2, w, b),
        lambda x, w, b: F.group_norm(x, 2, w, b),
        ((2, 4, 3, 2), (4,), (4,)),
    ),
    (
        lambda x, w, b: pb.nn.instance_norm(x, None, None, w, b),
        lambda x, w, b: F.instance_norm(x, None, None, w, b),
        ((2, 3, 5), (3,), (3,)),
    ),
    (
        lambda x, w, b: pb.nn.batch_norm(x, None, None, w, b, True),
        lambda x, w, b: F.batch_norm(x, None, None, w, b, True),
        ((4, 3, 5), (3,), (3,)),
    ),
    (
        lambda x: pb.nn.local_response_norm(x, 4, 0.5, 0.6, 2.0),
        lambda x: F.local_response_norm(x, 4, 0.5, 0.6, 2.0),
        ((2, 5, 3),),
    ),
    (
        lambda v, g: pb.nn.weight_norm(v, g, 1),
        lambda v, g: g * v / v.norm(dim=0, keepdim=True),
        ((3, 4), (1, 4)),
    ),
]


@pytest.mark.parametrize(("ours", "theirs", "shapes"), NORMS, ids=range(len(NORMS)))
def test_normalisation(ours, theirs, shapes):
    agree(ours, theirs, *[RNG.normal(size=s) for s in shapes])


@pytest.mark.parametrize("instance", [False, True], ids=["batch", "instance"])
def test_running_statistics_are_theirs(instance):
    x, mean, var = RNG.normal(size=(4, 3, 5)), RNG.normal(size=3), RNG.uniform(1, 2, size=3)
    tm, tv = torch.tensor(mean), torch.tensor(var)
    if instance:
        got = pb.nn.instance_norm(pb.tensor(x), pb.tensor(mean), pb.tensor(var), momentum=0.3)
        want = F.instance_norm(torch.tensor(x), tm, tv, momentum=0.3)
    else:
        got = pb.nn.batch_norm(
            pb.tensor(x), pb.tensor(mean), pb.tensor(var), training=True, momentum=0.3
        )
        want = F.batch_norm(torch.tensor(x), tm, tv, training=True, momentum=0.3)
    for a, b in zip(got, (want, tm, tv), strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-10)
    again = pb.nn.batch_norm(pb.tensor(x), got.running_mean, got.running_var)
    np.testing.assert_allclose(
        again.numpy(), F.batch_norm(torch.tensor(x), tm, tv).numpy(), rtol=1e-10
    )


def test_spectral_norm_divides_by_the_largest_singular_value():
    w = RNG.normal(size=(4, 6))
    got = pb.nn.spectral_norm(pb.tensor(w), n_power_iterations=200)
    np.testing.assert_allclose(got.weight.numpy(), w / np.linalg.norm(w, 2), rtol=1e-10)
    u, _, vt = np.linalg.svd(w)
    sigma = np.linalg.norm(w, 2)
    slope = pb.grad(lambda w: (pb.nn.spectral_norm(w, got.u, 1).weight ** 2).sum())(pb.tensor(w))
    outer = np.outer(u[:, 0], vt[0])
    want = 2 * w / sigma**2 - 2 * (w**2).sum() / sigma**3 * outer
    np.testing.assert_allclose(slope.numpy(), want, rtol=1e-8)


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_grid_sample(mode, padding, align):
    """Values and first derivatives; PyTorch has no second ones."""
    x, grid = RNG.normal(size=(2, 3, 5, 4)), RNG.uniform(-1.8, 1.8, size=(2, 3, 4, 2))
    tx, tg = (torch.tensor(a, requires_grad=True) for a in (x, grid))
    want = F.grid_sample(tx, tg, mode, padding, align)
    w = RNG.normal(size=want.shape)
    got, pull = pb.vjp(
        lambda x, g: pb.nn.grid_sample(x, g, mode, padding, align), pb.tensor(x), pb.tensor(grid)
    )
    np.testing.assert_allclose(got.numpy(), want.detach().numpy(), rtol=1e-9, atol=1e-12)
    want.backward(torch.tensor(w))
    compare(pull(pb.tensor(w)), (tx.grad, tg.grad), 1e-9)


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_grid_sample_of_volumes(padding):
    x, grid = RNG.normal(size=(1, 2, 3, 4, 5)), RNG.uniform(-1.5, 1.5, size=(1, 2, 3, 2, 3))
    got = pb.nn.grid_sample(pb.tensor(x), pb.tensor(grid), padding_mode=padding)
    want = F.grid_sample(
        torch.tensor(x), torch.tensor(grid), padding_mode=padding, align_corners=False
    )
    np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("size", [(2, 1, 3, 4), (2, 1, 2, 3, 4)], ids=str)
def test_affine_grid(size, align):
    theta = RNG.normal(size=(2, len(size) - 2, len(size) - 1))
    got = pb.nn.affine_grid(pb.tensor(theta), size, align)
    want = F.affine_grid(torch.tensor(theta), size, align)
    np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-10, atol=1e-12)
