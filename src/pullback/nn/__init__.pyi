"""The functions that people know from torch.nn.functional, differentiable to any order."""

# Written by tools/stubs.py (`make stubs`).

from typing import Any

from pullback.tensor import Tensor, _ArrayLike, _DTypeLike

def alpha_dropout(
    input: _ArrayLike, p: float = 0.5, training: bool = False, *, key: _ArrayLike | None = None
) -> Tensor:
    """Dropout for selu: elements become its lower limit, and mean and variance stay."""

def binary_cross_entropy(
    input: _ArrayLike,
    target: _ArrayLike,
    weight: _ArrayLike | None = None,
    *,
    reduction: str = "mean",
) -> Tensor:
    """`-(target * log(input) + (1 - target) * log(1 - input))` of probabilities."""

def binary_cross_entropy_with_logits(
    input: _ArrayLike,
    target: _ArrayLike,
    weight: _ArrayLike | None = None,
    *,
    reduction: str = "mean",
    pos_weight: _ArrayLike | None = None,
) -> Tensor:
    """The binary cross entropy of `sigmoid(input)`; `pos_weight` scales the positive part."""

def cdist(
    x1: _ArrayLike,
    x2: _ArrayLike,
    p: float = 2.0,
    compute_mode: str = "use_mm_for_euclid_dist_if_necessary",
) -> Tensor:
    """The p-norms of the differences of all pairs of rows, (..., P, M) and (..., R, M)."""

def celu(input: _ArrayLike, alpha: float = 1.0) -> Tensor:
    """`x` where it is positive, elsewhere `alpha * (exp(x / alpha) - 1)`: elu with slope 1 at
    0.
    """

def cosine_similarity(x1: _ArrayLike, x2: _ArrayLike, dim: int = 1, eps: float = 1e-08) -> Tensor:
    """`sum(x1 * x2) / (max(norm(x1), eps) * max(norm(x2), eps))` along the axis `dim`."""

def cross_entropy(
    input: _ArrayLike,
    target: _ArrayLike,
    weight: _ArrayLike | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """The negative log-likelihood of targets under `softmax(input)` along axis 1."""

def dice_loss(
    input: _ArrayLike, target: _ArrayLike, smooth: float = 1.0, reduction: str = "mean"
) -> Tensor:
    """`1 - (2 * sum(x * y) + smooth) / (sum(x) + sum(y) + smooth)` for each element of the
    batch.
    """

def dropout(
    input: _ArrayLike, p: float = 0.5, training: bool = True, *, key: _ArrayLike | None = None
) -> Tensor:
    """Every element is 0 with probability p, else it is divided by 1 - p; only while
    `training`.
    """

def dropout1d(
    input: _ArrayLike,
    p: float = 0.5,
    training: bool = True,
    *,
    key: _ArrayLike | None = None,
    layout: str = "channels_first",
) -> Tensor:
    """Dropout of whole channels of an array (N, C, L) or (C, L)."""

def dropout2d(
    input: _ArrayLike,
    p: float = 0.5,
    training: bool = True,
    *,
    key: _ArrayLike | None = None,
    layout: str = "channels_first",
) -> Tensor:
    """Dropout of whole channels of an array (N, C, H, W); one of 3 dimensions is (N, C, L)."""

def dropout3d(
    input: _ArrayLike,
    p: float = 0.5,
    training: bool = True,
    *,
    key: _ArrayLike | None = None,
    layout: str = "channels_first",
) -> Tensor:
    """Dropout of whole channels of an array (N, C, D, H, W) or (C, D, H, W)."""

def elu(input: _ArrayLike, alpha: float = 1.0) -> Tensor:
    """`x` where it is positive, elsewhere `alpha * (exp(x) - 1)`."""

def feature_alpha_dropout(
    input: _ArrayLike,
    p: float = 0.5,
    training: bool = False,
    *,
    key: _ArrayLike | None = None,
    layout: str = "channels_first",
) -> Tensor:
    """Alpha dropout of whole channels of an array (N, C, ...)."""

def focal_loss(
    input: _ArrayLike,
    target: _ArrayLike,
    weight: _ArrayLike | None = None,
    *,
    gamma: float = 2.0,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """The cross entropy of class indices, each times `(1 - p)**gamma` of its probability p."""

def gaussian_nll_loss(
    input: _ArrayLike,
    target: _ArrayLike,
    var: _ArrayLike,
    full: bool = False,
    eps: float = 1e-06,
    reduction: str = "mean",
) -> Tensor:
    """`(log(var) + (input - target)**2 / var) / 2`, with a `var` of at least `eps`."""

def gelu(input: _ArrayLike, approximate: str = "none") -> Tensor:
    """`x` times the normal distribution function of x, or with "tanh" an approximation of it."""

def glu(input: _ArrayLike, dim: int = -1) -> Tensor:
    """`a * sigmoid(b)` of the two halves of the array along the axis `dim`."""

def gumbel_softmax(
    logits: _ArrayLike, tau: float = 1.0, hard: bool = False, *, dim: int = -1, key: _ArrayLike
) -> Tensor:
    """The softmax of `(logits + gumbel noise) / tau`: a differentiable draw of one class."""

def hardshrink(input: Any, lambd: float = 0.5) -> Tensor:
    """`x`, or 0 where it is within [-lambd, lambd]."""

def hardsigmoid(input: Any) -> Tensor:
    """`min(max(x + 3, 0), 6) / 6`."""

def hardswish(input: Any) -> Tensor:
    """`x * min(max(x + 3, 0), 6) / 6`."""

def hardtanh(input: Any, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
    """`x` limited to [min_val, max_val], whose derivative at the limits is 0."""

def huber_loss(
    input: Any,
    target: _ArrayLike,
    reduction: str = "mean",
    delta: float = 1.0,
    weight: _ArrayLike | None = None,
) -> Tensor:
    """`d**2 / 2` for `d = abs(input - target)` below delta, above it `delta * (d - delta / 2)`."""

def kl_div(
    input: _ArrayLike, target: _ArrayLike, *, reduction: str = "mean", log_target: bool = False
) -> Tensor:
    """`target * (log(target) - input)`, where `input` and with `log_target` the target are
    logs.
    """

def l1_loss(
    input: Any, target: _ArrayLike, *, reduction: str = "mean", weight: _ArrayLike | None = None
) -> Tensor:
    """The mean of `abs(input - target)`; with weights, the sum over the sum of these."""

def leaky_relu(input: _ArrayLike, negative_slope: float = 0.01) -> Tensor:
    """`x` where it is positive, elsewhere `negative_slope * x`."""

def log_softmax(input: _ArrayLike, dim: int, *, dtype: _DTypeLike | None = None) -> Tensor:
    """`x - log(sum(exp(x)))` along the axis `dim`, after a cast to `dtype`."""

def logsigmoid(input: _ArrayLike) -> Tensor:
    """`log(sigmoid(x))` without underflow."""

def mish(input: _ArrayLike) -> Tensor:
    """`x * tanh(softplus(x))`."""

def mse_loss(
    input: Any, target: _ArrayLike, *, reduction: str = "mean", weight: _ArrayLike | None = None
) -> Tensor:
    """The mean of `abs(input - target)**2`; with weights, the sum over the sum of these."""

def nll_loss(
    input: _ArrayLike,
    target: _ArrayLike,
    weight: _ArrayLike | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """`-weight[t] * input[t]` of log-probabilities (N, C, ...) and class indices t (N, ...)."""

def normalize(input: _ArrayLike, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Tensor:
    """`x / max(norm(x), eps)` with the p-norm along the axis `dim`; zeros stay zeros."""

def pairwise_distance(
    x1: _ArrayLike, x2: _ArrayLike, p: float = 2.0, eps: float = 1e-06, keepdim: bool = False
) -> Tensor:
    """The p-norm of `x1 - x2 + eps` along the last axis."""

def pdist(input: _ArrayLike, p: float = 2.0) -> Tensor:
    """The distances of all pairs of rows of a matrix, each once: (0, 1), (0, 2), ..., (1, 2),
    ...
    """

def poisson_nll_loss(
    input: _ArrayLike,
    target: _ArrayLike,
    log_input: bool = True,
    full: bool = False,
    *,
    eps: float = 1e-08,
    reduction: str = "mean",
) -> Tensor:
    """`exp(input) - target * input`, or without `log_input` `input - target * log(input +
    eps)`.
    """

def prelu(input: _ArrayLike, weight: _ArrayLike, *, layout: str = "channels_first") -> Tensor:
    """`x` where it is positive, elsewhere `weight * x`; one weight for all or for each channel."""

def relu(input: _ArrayLike) -> Tensor:
    """`max(x, 0)`, whose derivative at 0 is 0."""

def relu6(input: Any) -> Tensor:
    """`min(max(x, 0), 6)`."""

def selu(input: _ArrayLike) -> Tensor:
    """The scaled elu that keeps mean 0 and variance 1: `1.0507 * elu(x, 1.6733)`."""

def sigmoid(input: _ArrayLike) -> Tensor:
    """The logistic function `1 / (1 + exp(-x))`."""

def sigmoid_focal_loss(
    inputs: _ArrayLike,
    targets: _ArrayLike,
    alpha: float = 0.25,
    gamma: float = 2.0,
    reduction: str = "none",
) -> Tensor:
    """The binary cross entropy of `sigmoid(inputs)` times `(1 - p)**gamma`, p being what is
    right.
    """

def silu(input: _ArrayLike) -> Tensor:
    """`x * sigmoid(x)`, also called swish."""

def smooth_l1_loss(
    input: Any, target: _ArrayLike, *, reduction: str = "mean", beta: float = 1.0
) -> Tensor:
    """`d**2 / (2 * beta)` where `d = abs(input - target)` is below beta, elsewhere `d - beta /
    2`.
    """

def softmax(input: _ArrayLike, dim: int, *, dtype: _DTypeLike | None = None) -> Tensor:
    """`exp(x) / sum(exp(x))` along the axis `dim`, after a cast to `dtype`."""

def softmin(input: _ArrayLike, dim: int, *, dtype: _DTypeLike | None = None) -> Tensor:
    """The softmax of -x."""

def softplus(input: Any, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """`log(1 + exp(beta * x)) / beta`, and x itself where `beta * x` is above the threshold."""

def softshrink(input: Any, lambd: float = 0.5) -> Tensor:
    """`x` moved towards 0 by `lambd`, and 0 where it would pass it."""

def softsign(input: _ArrayLike) -> Tensor:
    """`x / (1 + abs(x))`."""

def swiglu(input: _ArrayLike, dim: int = -1) -> Tensor:
    """`silu(a) * b` of the two halves of the array along the axis `dim`."""

def tanh(input: _ArrayLike) -> Tensor:
    """The hyperbolic tangent."""

def tanhshrink(input: _ArrayLike) -> Tensor:
    """`x - tanh(x)`."""

def threshold(input: Any, threshold: float, value: float) -> Tensor:
    """`x` where it is above the threshold, elsewhere `value`."""
