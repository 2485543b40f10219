"""What earlier systems got wrong in composites, losses and random masks, one test per trap."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest

import pullback as pb
import pullback.nn
from pullback.core import pytrees
from pullback.ir.op import REGISTRY
from pullback.ir.samples import Draw


def array(*shape: int) -> pb.Tensor:
    return pb.tensor(np.random.default_rng(math.prod(shape)).normal(size=shape))


# -- losses ----------------------------------------------------------------------------------------

LOSSES = sorted(
    key for key, e in REGISTRY.items() if e.namespace == "nn" and e.name.endswith(("_loss", "_div"))
) + [
    f"nn.{n}" for n in ("cross_entropy", "binary_cross_entropy", "binary_cross_entropy_with_logits")
]


def test_all_losses_are_there():
    assert len(LOSSES) >= 26, LOSSES


@pytest.mark.parametrize("key", LOSSES)
def test_losses_carry_a_gradient(key: str):
    """Trap: losses that are graph constants (cross entropy, nll, focal, dice, triplet, CTC ...)."""
    entry = REGISTRY[key]
    sample = entry.samples(Draw(1))[0]
    first, *rest = sample.args
    rest, kwargs = pytrees.map_tree(
        lambda a: pb.tensor(a) if isinstance(a, np.ndarray) else a, (rest, sample.kwargs)
    )
    x = pb.tensor(first, requires_grad=True)
    loss = entry.function(x, *rest, **kwargs)
    loss.sum().backward()
    assert np.abs(x.grad.numpy()).max() > 1e-3
    step = np.random.default_rng(2).normal(size=first.shape) * 1e-6
    moved = entry.function(pb.tensor(first + step), *rest, **kwargs)
    change = (moved - loss.detach()).sum().item()
    np.testing.assert_allclose(change, (x.grad.numpy() * step).sum(), rtol=1e-3, atol=1e-9)


CURVED = [
    ("cross_entropy", lambda x: pb.nn.cross_entropy(x, pb.tensor([1, 0]))),
    ("nll of log_softmax", lambda x: pb.nn.nll_loss(pb.nn.log_softmax(x, 1), pb.tensor([1, 0]))),
    ("focal", lambda x: pb.nn.focal_loss(x, pb.tensor([1, 0]))),
    ("triplet", lambda x: pb.nn.triplet_margin_loss(x, x * x, pb.sin(x), margin=9.0)),
    ("ctc", lambda x: pb.nn.ctc_loss(pb.nn.log_softmax(x[:, None], 2), pb.tensor([[1]]), [2], [1])),
    ("kl_div", lambda x: pb.nn.kl_div(pb.nn.log_softmax(x, 1), pb.tensor([[0.3, 0.3, 0.4]]))),
    ("smooth_l1", lambda x: pb.nn.smooth_l1_loss(x * x, pb.tensor([[0.1]], dtype="float64"))),
    ("dice", lambda x: pb.nn.dice_loss(pb.sigmoid(x), pb.tensor([[1.0, 0.0, 1.0]] * 2))),
    ("contrastive", lambda x: pb.nn.contrastive_loss(x, x * x, pb.tensor([0.0, 1.0]), 9.0)),
]


@pytest.mark.parametrize(("name", "loss"), CURVED, ids=[n for n, _ in CURVED])
def test_second_derivatives_of_losses_are_not_detached(name: str, loss: Any):
    """Trap: a second derivative that treats a saved value as constant."""
    x, v = array(2, 3), array(3, 2).reshape(2, 3)
    found = pb.hvp(loss, (x,), (v,)).numpy()
    h = 1e-5
    up, down = (pb.grad(loss)(x + s * h * v).numpy() for s in (1, -1))
    np.testing.assert_allclose(found, (up - down) / (2 * h), rtol=1e-6, atol=1e-8)
    assert np.abs(found).max() > 1e-4


def test_an_ignored_target_may_be_any_number():
    """Trap: an index that is masked afterwards still reads out of range, or as class 0."""
    x = pb.tensor(np.ones((3, 4)), requires_grad=True)
    pb.nn.cross_entropy(x, pb.tensor([1, -100, 3])).backward()
    assert np.all(x.grad.numpy()[1] == 0.0)
    assert np.all(x.grad.numpy()[[0, 2]] != 0.0)
    for wrong in (-1, 4, -100):
        with pytest.raises(IndexError, match=r"^cross_entropy: .*out of range"):
            pb.nn.cross_entropy(x, pb.tensor([1, wrong, 3]), ignore_index=-7)


def test_losses_of_certain_predictions_stay_finite():
    """Trap: log(0) in a loss, or 0 * inf in its derivative."""
    p = pb.tensor([0.0, 1.0, 0.0, 1.0], requires_grad=True)
    loss = pb.nn.binary_cross_entropy(p, pb.tensor([0.0, 1.0, 1.0, 0.0]), reduction="none")
    np.testing.assert_array_equal(loss.detach().numpy(), np.array([0, 0, 100, 100], np.float32))
    loss.sum().backward()
    assert np.all(np.isfinite(p.grad.numpy()))
    x = pb.tensor([1e4, -1e4], requires_grad=True)
    pb.nn.binary_cross_entropy_with_logits(x, pb.tensor([0.0, 1.0])).backward()
    np.testing.assert_allclose(x.grad.numpy(), [0.5, -0.5])
    y = pb.tensor([[1e4, -1e4]], requires_grad=True)
    loss = pb.nn.cross_entropy(y, pb.tensor([1]))
    loss.backward()
    assert loss.item() == 2e4
    np.testing.assert_array_equal(y.grad.numpy(), [[1.0, -1.0]])


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize(
    "f",
    [
        lambda x: pb.nn.cdist(x, x).sum(),
        lambda x: pb.nn.cdist(x, x, 1.5).sum(),
        lambda x: pb.nn.cdist(x, x, compute_mode="use_mm_for_euclid_dist").sum(),
        lambda x: pb.nn.pdist(pb.concat([x, x])).sum(),
        lambda x: pb.nn.normalize(x * 0.0).sum(),
        lambda x: pb.nn.cosine_similarity(x * 0.0, x).sum(),
        lambda x: pb.nn.pairwise_distance(x, x, eps=0.0).sum(),
        lambda x: pb.nn.contrastive_loss(x, x, pb.zeros(x.shape[0], dtype="float64")),
        lambda x: pb.nn.triplet_margin_loss(x, x, x, eps=0.0),
        lambda x: pb.nn.l1_loss(x, x.detach()),
    ],
)
def test_distances_of_zero_have_finite_derivatives(f: Any, order: int):
    """Trap: the derivative of a norm at 0 is 0/0."""
    x = array(2, 3)

    def along(t: Any) -> Any:
        return f(x + t * t * t + t)

    for _ in range(order):
        along = pb.grad(along)
    assert np.isfinite(along(pb.tensor(0.0, dtype="float64")).item())


# -- activations -----------------------------------------------------------------------------------


def test_relu_has_derivative_zero_at_zero():
    """Trap: a relu mask of 0.5 at 0."""
    x = pb.tensor([-1.0, 0.0, 1.0], requires_grad=True)
    pb.nn.relu(x).sum().backward()
    assert x.grad.tolist() == [0.0, 0.0, 1.0]


def test_gelu_is_the_exact_one():
    """Trap: gelu as x * sigmoid(1.702 * x) under the exact name."""
    x = np.linspace(-4.0, 4.0, 41)
    exact = [v * 0.5 * math.erfc(-v / math.sqrt(2.0)) for v in x]
    np.testing.assert_allclose(pb.nn.gelu(pb.tensor(x)).numpy(), exact, rtol=1e-13, atol=1e-15)
    quick = x / (1.0 + np.exp(-1.702 * x))
    assert np.abs(quick - exact).max() > 0.01


@pytest.mark.parametrize("dim", [0, 1, 2, -1, -2, -3])
def test_softmax_works_along_every_axis(dim: int):
    """Trap: softmax on the last axis only."""
    x = array(2, 3, 4)
    y = pb.nn.softmax(x, dim).numpy()
    powers = np.exp(x.numpy())
    np.testing.assert_allclose(y, powers / powers.sum(dim, keepdims=True), rtol=1e-12)
    pulled = pb.grad(lambda v: (pb.nn.softmax(v, dim) * x).sum())(x).numpy()
    centred = x.numpy() - (y * x.numpy()).sum(dim, keepdims=True)
    np.testing.assert_allclose(pulled, y * centred, rtol=1e-10, atol=1e-13)


# -- random masks ----------------------------------------------------------------------------------


def test_dropout_masks_and_scales():
    """Trap: dropout that scales but never masks."""
    y = pb.nn.dropout(pb.ones(10_000), 0.25, key=pb.random.key(1)).numpy()
    assert set(np.unique(y)) == {np.float32(0.0), np.float32(1.0 / 0.75)}
    assert abs((y == 0.0).mean() - 0.25) < 0.02


@pytest.mark.parametrize("name", ["dropout", "alpha_dropout", "dropout1d", "feature_alpha_dropout"])
def test_a_recomputed_mask_is_the_same(name: str):
    """Trap: dropout redraws its mask when it is recomputed, and derivatives use another mask."""
    x = pb.tensor(np.full((40, 30, 2), 2.0))
    key = pb.random.key(3)

    def f(v: Any) -> Any:
        return getattr(pb.nn, name)(v, 0.5, True, key=key)

    first = f(x).numpy()
    np.testing.assert_array_equal(f(x).numpy(), first)
    np.testing.assert_allclose(pb.jit(f)(x).numpy(), first, rtol=1e-14)
    kept = first == first.max()
    assert 0.4 < kept.mean() < 0.6
    slope = pb.grad(lambda v: f(v).sum())(x).numpy()
    np.testing.assert_array_equal(slope != 0.0, kept)
    other = getattr(pb.nn, name)(x, 0.5, True, key=pb.random.key(4)).numpy()
    assert np.any(other != first)


# -- normalisation, attention, pooling -------------------------------------------------------------


def test_batch_norm_in_training_uses_the_batch():
    """Trap: batch norm in inference mode only."""
    x = array(5, 3)
    mean, var = pb.zeros(3, dtype="float64"), pb.ones(3, dtype="float64")
    y, *running = pb.nn.batch_norm(x, mean, var, training=True)
    np.testing.assert_allclose(y.numpy().mean(0), 0.0, atol=1e-12)
    np.testing.assert_allclose(y.numpy().std(0), 1.0, rtol=1e-4)
    np.testing.assert_allclose(running[0].numpy(), 0.1 * x.numpy().mean(0), rtol=1e-12)
    slope = pb.grad(lambda v: (pb.nn.batch_norm(v, mean, var, training=True)[0] * x).sum())(x)
    np.testing.assert_allclose(slope.numpy().sum(0), 0.0, atol=1e-10)  # a shift changes nothing


def test_running_statistics_of_integers_become_floats():
    x = pb.tensor(np.arange(12).reshape(2, 2, 3))
    zeros, ones = pb.tensor(np.zeros(2, np.int64)), pb.tensor(np.ones(2, np.int64))
    for name in ("batch_norm", "instance_norm"):
        norm = partial(getattr(pb.nn, name), momentum=0.3)
        more = {"training": True} if name == "batch_norm" else {}
        found = norm(x, zeros, ones, **more)
        expected = norm(x, pb.zeros(2), pb.ones(2), **more)
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_attention_of_vectors_without_elements_is_the_mean():
    q, k, v = pb.zeros((2, 0)), pb.zeros((3, 0)), pb.tensor([[0.0], [3.0], [6.0]])
    assert pb.nn.scaled_dot_product_attention(q, k, v).tolist() == [[3.0], [3.0]]


def test_one_wrong_class_is_named():
    with pytest.raises(IndexError, match="class 7 at target"):
        pb.nn.cross_entropy(pb.zeros(3), pb.tensor(7))


def test_attention_has_batches_heads_and_masks():
    """Trap: attention for matrices only, without mask, batch or heads."""
    q, k, v = array(2, 3, 4, 5), array(2, 3, 6, 5), array(2, 3, 6, 7)
    mask = np.random.default_rng(0).random((2, 1, 4, 6)) < 0.7
    mask[..., 0] = True

    def plain(q: Any, k: Any, v: Any) -> Any:
        scores = pb.matmul(q, pb.matrix_transpose(k)) / math.sqrt(5.0)
        return pb.matmul(pb.nn.softmax(pb.where(pb.tensor(mask), scores, -math.inf), -1), v)

    def ours(q: Any, k: Any, v: Any) -> Any:
        return pb.nn.scaled_dot_product_attention(q, k, v, attn_mask=pb.tensor(mask))

    w = array(2, 3, 4, 7)
    for f in (lambda f: f(q, k, v), lambda f: pb.vjp(f, q, k, v)[1](w)):
        for a, b in zip(pytrees.leaves(f(ours)), pytrees.leaves(f(plain)), strict=True):
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("size", "parts"), [(7, 3), (5, 4), (10, 7), (3, 5)])
def test_adaptive_pooling_windows_end_with_a_ceil(size: int, parts: int):
    """Trap: adaptive pooling windows with a floor at the end."""
    x = array(1, 1, size)
    windows = [(i * size // parts, -(-(i + 1) * size // parts)) for i in range(parts)]
    row = x.numpy()[0, 0]
    found = pb.nn.adaptive_avg_pool1d(x, parts).numpy()[0, 0]
    np.testing.assert_allclose(found, [row[a:b].mean() for a, b in windows], rtol=1e-12)


@pytest.mark.parametrize("p", [0.0, 1.0, 1.5, 2.0, 3.0, math.inf])
def test_many_distances_are_those_of_few(p: float):
    """Trap: a result that depends on which way a size takes; large ones are not stored as pairs."""
    x, y = array(80, 120), array(110, 120)
    mode = "donot_use_mm_for_euclid_dist"
    whole = pb.nn.cdist(x, y, p, mode)
    parts = pb.concat([pb.nn.cdist(x[i : i + 8], y, p, mode) for i in range(0, 80, 8)])
    np.testing.assert_array_equal(whole.numpy(), parts.numpy())
    if p == 0.0:
        return

    def slope(v: Any) -> Any:
        return pb.grad(lambda u: (pb.nn.cdist(u, y, p, mode) * 0.1).sum())(v)

    np.testing.assert_allclose(slope(x).numpy()[:8], slope(x[:8]).numpy(), rtol=1e-10, atol=1e-12)
    second = pb.vjp(slope, x)[1](x)[0].numpy()
    np.testing.assert_allclose(second[:8], pb.vjp(slope, x[:8])[1](x[:8])[0].numpy(), rtol=1e-8,
                               atol=1e-10)  # fmt: skip


def test_many_labels_are_those_of_few():
    x = array(60, 140)
    labels = np.argsort(np.random.default_rng(0).random((60, 140)), axis=1)
    labels[:, 7:] = -1
    target = pb.tensor(labels)
    whole = pb.nn.multilabel_margin_loss(x, target, reduction="none").numpy()
    parts = [
        pb.nn.multilabel_margin_loss(x[i : i + 20], target[i : i + 20], reduction="none").numpy()
        for i in (0, 20, 40)
    ]
    np.testing.assert_array_equal(whole, np.concatenate(parts))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_means_in_half_precision_count_beyond_its_range(dtype: str):
    """Trap: a count of targets held in half precision is rounded, or infinite."""
    x = pb.astype(pb.zeros((70_001, 2)), dtype)
    t = pb.tensor(np.zeros(70_001, np.int64))
    for loss in (pb.nn.cross_entropy(x, t), pb.nn.cross_entropy(x, t, label_smoothing=0.1)):
        np.testing.assert_allclose(loss.item(), math.log(2.0), rtol=0.01)
    pairs = pb.nn.mse_loss(x[:, 0] + 1.0, x[:, 1], weight=x[:, 0] + 1.0)
    np.testing.assert_allclose(pairs.item(), 1.0, rtol=0.01)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: pb.nn.relu(x),
        lambda x: pb.nn.elu(x, alpha=0.7),
        lambda x: pb.nn.gelu(x, approximate="tanh"),
        lambda x: pb.nn.softplus(x, 2.0),
        lambda x: pb.nn.softmax(x, 1),
        lambda x: pb.nn.log_softmax(x, 1),
        lambda x: pb.nn.huber_loss(x, x * 2.0, "none", delta=0.7),
        lambda x: pb.nn.mse_loss(x, pb.sin(x), reduction="none"),
        lambda x: pb.nn.binary_cross_entropy_with_logits(x, x * x, reduction="none"),
    ],
)
def test_large_arrays_give_what_their_parts_give(f: Any):
    """Trap: a result that depends on which way a size takes."""
    x, w = array(1100, 1000), array(1000, 1100).reshape(1100, 1000)
    np.testing.assert_array_equal(f(x).numpy()[:30], f(x[:30]).numpy())

    def slope(v: Any, w: Any) -> Any:
        return pb.grad(lambda u: (f(u) * w).sum())(v)

    np.testing.assert_allclose(
        slope(x, w).numpy()[:30], slope(x[:30], w[:30]).numpy(), rtol=1e-12, atol=1e-13
    )
    second = pb.vjp(lambda v: slope(v, w), x)[1](w)[0].numpy()[:30]
    expected = pb.vjp(lambda v: slope(v, w[:30]), x[:30])[1](w[:30])[0].numpy()
    np.testing.assert_allclose(second, expected, rtol=1e-10, atol=1e-12)
