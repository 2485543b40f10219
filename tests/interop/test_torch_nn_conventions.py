"""Where a derivative is a matter of convention, pb.nn follows torch.nn.functional."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pullback as pb
import pullback.nn

torch = pytest.importorskip("torch")

from interop.torch_agreement import agree  # noqa: E402

F: Any = torch.nn.functional

KINKS = [
    ("relu", [0.0], {}),
    ("relu6", [0.0, 6.0], {}),
    ("leaky_relu", [0.0], {"negative_slope": 0.3}),
    ("elu", [0.0], {"alpha": 0.5}),
    ("selu", [0.0], {}),
    ("celu", [0.0], {"alpha": 0.5}),
    ("hardtanh", [-1.0, 1.0], {}),
    ("hardsigmoid", [-3.0, 3.0], {}),
    ("hardswish", [-3.0, 3.0], {}),
    ("hardshrink", [-0.5, 0.5], {}),
    ("softshrink", [-0.5, 0.5], {}),
    ("threshold", [0.5], {"threshold": 0.5, "value": 2.0}),
    ("softplus", [20.0, 25.0], {}),
    ("softsign", [0.0], {}),
    ("logsigmoid", [0.0, -200.0, 200.0], {}),
    ("gelu", [0.0, -30.0, 30.0], {}),
    ("silu", [0.0, -100.0, 100.0], {}),
    ("mish", [0.0, -100.0, 100.0], {}),
]


@pytest.mark.parametrize(("name", "points", "options"), KINKS, ids=lambda v: str(v))
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_first_derivatives_at_kinks_and_far_out(name, points, options, dtype):
    agree(
        lambda x: getattr(pb.nn, name)(x, **options),
        lambda x: getattr(F, name)(x, **options),
        [np.asarray(points, dtype)],
        order=1,
        loosely=100.0 if name == "hardsigmoid" else 1.0,  # PyTorch rounds 1/6 to float32
    )


PAIRS = [
    ("l1_loss", [0.0], {}),
    ("smooth_l1_loss", [0.0, 1.0, -1.0], {}),
    ("smooth_l1_loss", [0.0, 0.5, -0.5], {"beta": 0.5}),
    ("huber_loss", [0.0, 2.0, -2.0], {"delta": 2.0}),
    ("binary_cross_entropy_with_logits", [0.0, 800.0, -800.0], {}),
]


@pytest.mark.parametrize(("name", "points", "options"), PAIRS, ids=lambda v: str(v))
def test_losses_at_kinks(name, points, options):
    x = np.asarray(points)
    agree(
        lambda a, b: getattr(pb.nn, name)(a, b, **options),
        lambda a, b: getattr(F, name)(a, b, **options),
        [x, np.zeros_like(x)],
        order=1,
    )


def test_margins_that_are_just_reached():
    ones = np.ones(3)
    signs = np.array([1.0, -1.0, 1.0])
    agree(pb.nn.hinge_embedding_loss, F.hinge_embedding_loss, [ones, signs], order=1)
    agree(pb.nn.margin_ranking_loss, F.margin_ranking_loss, [ones, ones, signs], order=1)
    x, t = np.array([[0.0, 1.0, 3.0]]), np.array([1])
    agree(pb.nn.multi_margin_loss, F.multi_margin_loss, [x, t], order=1)
    labels = np.array([[1, -1, 0]])
    agree(pb.nn.multilabel_margin_loss, F.multilabel_margin_loss, [x, labels], order=1)


@pytest.mark.parametrize("options", [{"padding_idx": 1}, {"padding_idx": -1}, {"padding_idx": 0}])
def test_the_padding_row_has_no_gradient(options):
    index, table = np.array([[1, 0, 3], [1, 1, 2]]), np.random.default_rng(0).normal(size=(4, 2))
    agree(
        lambda w: pb.nn.embedding(pb.tensor(index), w, **options),
        lambda w: F.embedding(torch.tensor(index), w, **options),
        [table],
        order=1,
    )


def test_gradients_scaled_by_frequency():
    index, table = np.array([1, 0, 1, 1, 3]), np.random.default_rng(0).normal(size=(4, 2))
    agree(
        lambda w: pb.nn.embedding(pb.tensor(index), w, scale_grad_by_freq=True),
        lambda w: F.embedding(torch.tensor(index), w, scale_grad_by_freq=True),
        [table],
        order=1,
    )

    def bags(w: Any) -> Any:  # PyTorch's own embedding_bag divides by the counts of other rows
        rows = F.embedding(torch.tensor(index), w, scale_grad_by_freq=True)
        return torch.stack([rows[:2].sum(0), rows[2:].sum(0)])

    agree(
        lambda w: pb.nn.embedding_bag(
            pb.tensor(index), w, pb.tensor([0, 2]), scale_grad_by_freq=True, mode="sum"
        ),
        bags,
        [table],
        order=1,
    )


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_ctc_of_logits(reduction, dtype):
    """PyTorch's derivative holds for log-probabilities that sum to 1, so both take logits here."""
    rng = np.random.default_rng(3)
    logits = rng.normal(size=(12, 4, 5)).astype(dtype)
    targets = rng.integers(1, 5, (4, 4))
    targets[0] = 2  # repetitions
    inputs, lengths = np.array([12, 9, 12, 5]), np.array([4, 3, 0, 2])
    agree(
        lambda x: pb.nn.ctc_loss(
            pb.nn.log_softmax(x, 2), pb.tensor(targets), inputs, lengths, reduction=reduction
        ),
        lambda x: F.ctc_loss(
            F.log_softmax(x, 2), torch.tensor(targets), torch.tensor(inputs),
            torch.tensor(lengths), reduction=reduction,
        ),
        [logits],
        order=1,
    )  # fmt: skip
    flat = np.concatenate([t[:n] for t, n in zip(targets, lengths, strict=True)])
    agree(
        lambda x: pb.nn.ctc_loss(
            pb.nn.log_softmax(x, 2), pb.tensor(flat), inputs, lengths, 0, reduction, True
        ),
        lambda x: F.ctc_loss(
            F.log_softmax(x, 2), torch.tensor(flat), torch.tensor(inputs), torch.tensor(lengths),
            0, reduction, True,
        ),
        [logits],
        order=1,
    )  # fmt: skip


def test_ctc_of_a_target_that_is_too_long():
    x = np.log(np.full((2, 1, 3), 1.0 / 3.0))
    args = [[1, 2, 1]], [2], [3]
    targets, inputs, lengths = map(pb.tensor, args)
    assert pb.nn.ctc_loss(pb.tensor(x), targets, *args[1:]).item() == np.inf
    options: Any = {"reduction": "sum", "zero_infinity": True}
    agree(
        lambda v: pb.nn.ctc_loss(pb.nn.log_softmax(v, 2), targets, inputs, lengths, **options),
        lambda v: F.ctc_loss(F.log_softmax(v, 2), *map(torch.tensor, args), **options),
        [x],
        order=1,
    )


def test_losses_of_ignored_targets_only_are_nan_as_a_mean():
    x, t = pb.tensor(np.ones((2, 3))), pb.tensor([-100, -100])
    assert np.isnan(pb.nn.cross_entropy(x, t).item())
    assert np.isnan(pb.nn.nll_loss(x, t).item())
    assert pb.nn.cross_entropy(x, t, reduction="sum").item() == 0.0


@pytest.mark.parametrize("scale", [1.0, 1e3, 1e4])
def test_softmax_of_large_logits_in_float32(scale):
    x = (np.random.default_rng(0).normal(size=(5, 7)) * scale).astype(np.float32)
    for name in ("softmax", "log_softmax"):
        agree(
            lambda v, name=name: getattr(pb.nn, name)(v, 1),
            lambda v, name=name: getattr(F, name)(v, 1),
            [x],
            order=1,
        )
    t = np.arange(5)
    agree(
        lambda v: pb.nn.cross_entropy(v, pb.tensor(t)),
        lambda v: F.cross_entropy(v, torch.tensor(t)),
        [x],
    )


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, 1.5])
def test_distances_of_zero_have_no_derivative(p):
    x = np.random.default_rng(0).normal(size=(3, 4))
    agree(lambda a: pb.nn.cdist(a, pb.tensor(x), p), lambda a: torch.cdist(a, torch.tensor(x), p),
          [x], order=1)  # fmt: skip
    rows = np.stack([x[0], x[0], x[1]])
    agree(lambda a: pb.nn.pdist(a, p), lambda a: F.pdist(a, p), [rows], order=1)


@pytest.mark.parametrize("length", [3, 30])
def test_long_rows_go_through_products_of_matrices(length: int):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 30, length)), rng.normal(size=(2, 28, length))
    for mode in ("use_mm_for_euclid_dist_if_necessary", "donot_use_mm_for_euclid_dist"):
        agree(
            lambda a, b, mode=mode: pb.nn.cdist(a, b, compute_mode=mode),
            lambda a, b, mode=mode: torch.cdist(a, b, compute_mode=mode),
            [x, y],
            order=1,
        )


def test_dropout_has_the_moments_of_torch():
    """Other random numbers, the same distribution."""
    x = np.random.default_rng(0).normal(size=200_000)
    key = pb.random.key(5)
    torch.manual_seed(0)
    for name in ("dropout", "alpha_dropout"):
        ours = getattr(pb.nn, name)(pb.tensor(x), 0.3, True, key=key).numpy()
        other = getattr(F, name)(torch.tensor(x), 0.3, True).numpy()
        np.testing.assert_allclose(ours.mean(), other.mean(), atol=0.02)
        np.testing.assert_allclose(ours.std(), other.std(), rtol=0.02)
        np.testing.assert_allclose((ours == ours.min()).mean(), (other == other.min()).mean(),
                                   atol=0.01)  # fmt: skip


def test_straight_through_gumbel_softmax():
    """The one-hot result has the derivative of the soft one."""
    x = pb.tensor(np.random.default_rng(0).normal(size=(4, 5)))
    w = pb.tensor(np.random.default_rng(1).normal(size=(4, 5)))
    key = pb.random.key(2)
    hard = pb.nn.gumbel_softmax(x, 0.7, True, key=key).numpy()
    soft = pb.nn.gumbel_softmax(x, 0.7, key=key).numpy()
    np.testing.assert_array_equal(hard, np.eye(5)[soft.argmax(1)])
    slopes = [
        pb.grad(lambda v, h=h: (pb.nn.gumbel_softmax(v, 0.7, h, key=key) * w).sum())(x).numpy()
        for h in (True, False)
    ]
    np.testing.assert_array_equal(slopes[0], slopes[1])
    assert np.abs(slopes[0]).max() > 0.01
