"""The functions that people know from torch.nn.functional, differentiable to any order, and
layers."""

# Written by tools/stubs.py (`make stubs`).

from collections.abc import Sequence
from typing import Any, NamedTuple

from pullback.nn import init as init
from pullback.nn.layers.attention import MultiheadAttention as MultiheadAttention
from pullback.nn.layers.cells import GRUCell as GRUCell
from pullback.nn.layers.cells import LSTMCell as LSTMCell
from pullback.nn.layers.cells import RNNCell as RNNCell
from pullback.nn.layers.convolution import Conv1d as Conv1d
from pullback.nn.layers.convolution import Conv2d as Conv2d
from pullback.nn.layers.convolution import Conv3d as Conv3d
from pullback.nn.layers.convolution import ConvTranspose1d as ConvTranspose1d
from pullback.nn.layers.convolution import ConvTranspose2d as ConvTranspose2d
from pullback.nn.layers.convolution import ConvTranspose3d as ConvTranspose3d
from pullback.nn.layers.dropout import AlphaDropout as AlphaDropout
from pullback.nn.layers.dropout import Dropout as Dropout
from pullback.nn.layers.dropout import Dropout1d as Dropout1d
from pullback.nn.layers.dropout import Dropout2d as Dropout2d
from pullback.nn.layers.dropout import Dropout3d as Dropout3d
from pullback.nn.layers.dropout import FeatureAlphaDropout as FeatureAlphaDropout
from pullback.nn.layers.dropout import RReLU as RReLU
from pullback.nn.layers.embedding import Embedding as Embedding
from pullback.nn.layers.embedding import EmbeddingBag as EmbeddingBag
from pullback.nn.layers.functions import CELU as CELU
from pullback.nn.layers.functions import ELU as ELU
from pullback.nn.layers.functions import GELU as GELU
from pullback.nn.layers.functions import GLU as GLU
from pullback.nn.layers.functions import SELU as SELU
from pullback.nn.layers.functions import AdaptiveAvgPool1d as AdaptiveAvgPool1d
from pullback.nn.layers.functions import AdaptiveAvgPool2d as AdaptiveAvgPool2d
from pullback.nn.layers.functions import AdaptiveAvgPool3d as AdaptiveAvgPool3d
from pullback.nn.layers.functions import AdaptiveMaxPool1d as AdaptiveMaxPool1d
from pullback.nn.layers.functions import AdaptiveMaxPool2d as AdaptiveMaxPool2d
from pullback.nn.layers.functions import AdaptiveMaxPool3d as AdaptiveMaxPool3d
from pullback.nn.layers.functions import AvgPool1d as AvgPool1d
from pullback.nn.layers.functions import AvgPool2d as AvgPool2d
from pullback.nn.layers.functions import AvgPool3d as AvgPool3d
from pullback.nn.layers.functions import ChannelShuffle as ChannelShuffle
from pullback.nn.layers.functions import Flatten as Flatten
from pullback.nn.layers.functions import Fold as Fold
from pullback.nn.layers.functions import Hardshrink as Hardshrink
from pullback.nn.layers.functions import Hardsigmoid as Hardsigmoid
from pullback.nn.layers.functions import Hardswish as Hardswish
from pullback.nn.layers.functions import Hardtanh as Hardtanh
from pullback.nn.layers.functions import Identity as Identity
from pullback.nn.layers.functions import Lambda as Lambda
from pullback.nn.layers.functions import LeakyReLU as LeakyReLU
from pullback.nn.layers.functions import LocalResponseNorm as LocalResponseNorm
from pullback.nn.layers.functions import LogSigmoid as LogSigmoid
from pullback.nn.layers.functions import LogSoftmax as LogSoftmax
from pullback.nn.layers.functions import LPPool1d as LPPool1d
from pullback.nn.layers.functions import LPPool2d as LPPool2d
from pullback.nn.layers.functions import LPPool3d as LPPool3d
from pullback.nn.layers.functions import MaxPool1d as MaxPool1d
from pullback.nn.layers.functions import MaxPool2d as MaxPool2d
from pullback.nn.layers.functions import MaxPool3d as MaxPool3d
from pullback.nn.layers.functions import MaxUnpool1d as MaxUnpool1d
from pullback.nn.layers.functions import MaxUnpool2d as MaxUnpool2d
from pullback.nn.layers.functions import MaxUnpool3d as MaxUnpool3d
from pullback.nn.layers.functions import Mish as Mish
from pullback.nn.layers.functions import PixelShuffle as PixelShuffle
from pullback.nn.layers.functions import PixelUnshuffle as PixelUnshuffle
from pullback.nn.layers.functions import PReLU as PReLU
from pullback.nn.layers.functions import ReLU as ReLU
from pullback.nn.layers.functions import ReLU6 as ReLU6
from pullback.nn.layers.functions import Sequential as Sequential
from pullback.nn.layers.functions import Sigmoid as Sigmoid
from pullback.nn.layers.functions import SiLU as SiLU
from pullback.nn.layers.functions import Softmax as Softmax
from pullback.nn.layers.functions import Softmin as Softmin
from pullback.nn.layers.functions import Softplus as Softplus
from pullback.nn.layers.functions import Softshrink as Softshrink
from pullback.nn.layers.functions import Softsign as Softsign
from pullback.nn.layers.functions import Tanh as Tanh
from pullback.nn.layers.functions import Tanhshrink as Tanhshrink
from pullback.nn.layers.functions import Threshold as Threshold
from pullback.nn.layers.functions import Unflatten as Unflatten
from pullback.nn.layers.functions import Unfold as Unfold
from pullback.nn.layers.functions import Upsample as Upsample
from pullback.nn.layers.linear import Bilinear as Bilinear
from pullback.nn.layers.linear import Linear as Linear
from pullback.nn.layers.losses import BCELoss as BCELoss
from pullback.nn.layers.losses import BCEWithLogitsLoss as BCEWithLogitsLoss
from pullback.nn.layers.losses import CosineEmbeddingLoss as CosineEmbeddingLoss
from pullback.nn.layers.losses import CosineSimilarity as CosineSimilarity
from pullback.nn.layers.losses import CrossEntropyLoss as CrossEntropyLoss
from pullback.nn.layers.losses import CTCLoss as CTCLoss
from pullback.nn.layers.losses import GaussianNLLLoss as GaussianNLLLoss
from pullback.nn.layers.losses import HingeEmbeddingLoss as HingeEmbeddingLoss
from pullback.nn.layers.losses import HuberLoss as HuberLoss
from pullback.nn.layers.losses import KLDivLoss as KLDivLoss
from pullback.nn.layers.losses import L1Loss as L1Loss
from pullback.nn.layers.losses import MarginRankingLoss as MarginRankingLoss
from pullback.nn.layers.losses import MSELoss as MSELoss
from pullback.nn.layers.losses import MultiLabelMarginLoss as MultiLabelMarginLoss
from pullback.nn.layers.losses import MultiLabelSoftMarginLoss as MultiLabelSoftMarginLoss
from pullback.nn.layers.losses import MultiMarginLoss as MultiMarginLoss
from pullback.nn.layers.losses import NLLLoss as NLLLoss
from pullback.nn.layers.losses import PairwiseDistance as PairwiseDistance
from pullback.nn.layers.losses import PoissonNLLLoss as PoissonNLLLoss
from pullback.nn.layers.losses import SmoothL1Loss as SmoothL1Loss
from pullback.nn.layers.losses import SoftMarginLoss as SoftMarginLoss
from pullback.nn.layers.losses import TripletMarginLoss as TripletMarginLoss
from pullback.nn.layers.normalisation import BatchNorm1d as BatchNorm1d
from pullback.nn.layers.normalisation import BatchNorm2d as BatchNorm2d
from pullback.nn.layers.normalisation import BatchNorm3d as BatchNorm3d
from pullback.nn.layers.normalisation import GroupNorm as GroupNorm
from pullback.nn.layers.normalisation import InstanceNorm1d as InstanceNorm1d
from pullback.nn.layers.normalisation import InstanceNorm2d as InstanceNorm2d
from pullback.nn.layers.normalisation import InstanceNorm3d as InstanceNorm3d
from pullback.nn.layers.normalisation import LayerNorm as LayerNorm
from pullback.nn.layers.normalisation import RMSNorm as RMSNorm
from pullback.nn.layers.padding import CircularPad1d as CircularPad1d
from pullback.nn.layers.padding import CircularPad2d as CircularPad2d
from pullback.nn.layers.padding import CircularPad3d as CircularPad3d
from pullback.nn.layers.padding import ConstantPad1d as ConstantPad1d
from pullback.nn.layers.padding import ConstantPad2d as ConstantPad2d
from pullback.nn.layers.padding import ConstantPad3d as ConstantPad3d
from pullback.nn.layers.padding import ReflectionPad1d as ReflectionPad1d
from pullback.nn.layers.padding import ReflectionPad2d as ReflectionPad2d
from pullback.nn.layers.padding import ReflectionPad3d as ReflectionPad3d
from pullback.nn.layers.padding import ReplicationPad1d as ReplicationPad1d
from pullback.nn.layers.padding import ReplicationPad2d as ReplicationPad2d
from pullback.nn.layers.padding import ReplicationPad3d as ReplicationPad3d
from pullback.nn.layers.padding import ZeroPad1d as ZeroPad1d
from pullback.nn.layers.padding import ZeroPad2d as ZeroPad2d
from pullback.nn.layers.padding import ZeroPad3d as ZeroPad3d
from pullback.nn.layers.recurrent import GRU as GRU
from pullback.nn.layers.recurrent import LSTM as LSTM
from pullback.nn.layers.recurrent import RNN as RNN
from pullback.nn.layers.transformer import TransformerDecoderLayer as TransformerDecoderLayer
from pullback.nn.layers.transformer import TransformerEncoderLayer as TransformerEncoderLayer
from pullback.ops.index_plans import scatter_plan
from pullback.tensor import Tensor, _ArrayLike, _DTypeLike

class Normalised(NamedTuple):
    """The output of a normalisation in training, and the running statistics after it."""

    output: Tensor
    running_mean: Tensor
    running_var: Tensor

class Spectral(NamedTuple):
    """A weight of spectral norm about 1, and the vector that the next call starts from."""

    weight: Tensor
    u: Tensor

def adaptive_avg_pool1d(
    input: _ArrayLike, output_size: int | Sequence[int], *, layout: str = "channels_first"
) -> Tensor:
    """The means of `output_size` windows that cover (batch, channels, length) evenly."""

def adaptive_avg_pool2d(
    input: _ArrayLike, output_size: Any, *, layout: str = "channels_first"
) -> Tensor:
    """The means of windows that cover (batch, channels, height, width); see
    `adaptive_avg_pool1d`.
    """

def adaptive_avg_pool3d(
    input: _ArrayLike, output_size: int | Sequence[int], *, layout: str = "channels_first"
) -> Tensor:
    """The means of windows that cover (batch, channels, depth, height, width); see
    `adaptive_avg_pool1d`.
    """

def adaptive_max_pool1d(
    input: _ArrayLike,
    output_size: int | Sequence[int],
    return_indices: bool = False,
    *,
    layout: str = "channels_first",
) -> Tensor | Any:
    """The largest elements of the windows of `adaptive_avg_pool1d`, optionally with their
    indices.
    """

def adaptive_max_pool2d(
    input: _ArrayLike,
    output_size: Any,
    return_indices: bool = False,
    *,
    layout: str = "channels_first",
) -> Tensor | Any:
    """The largest elements of the windows of `adaptive_avg_pool2d`, optionally with their
    indices.
    """

def adaptive_max_pool3d(
    input: _ArrayLike,
    output_size: int | Sequence[int],
    return_indices: bool = False,
    *,
    layout: str = "channels_first",
) -> Tensor | Any:
    """The largest elements of the windows of `adaptive_avg_pool3d`, optionally with their
    indices.
    """

def affine_grid(
    theta: _ArrayLike, size: int | Sequence[int], align_corners: bool = False
) -> Tensor:
    """The grid for `grid_sample` that an affine map makes of the places of an output of `size`."""

def alpha_dropout(
    input: _ArrayLike, p: float = 0.5, training: bool = False, *, key: _ArrayLike | None = None
) -> Tensor:
    """Dropout for selu: elements become its lower limit, and mean and variance stay."""

def avg_pool1d(
    input: _ArrayLike,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    *,
    dilation: int | Sequence[int] = 1,
    layout: str = "channels_first",
) -> Tensor:
    """The mean of the elements under each window of (batch, channels, length)."""

def avg_pool2d(
    input: _ArrayLike,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
    *,
    dilation: int | Sequence[int] = 1,
    layout: str = "channels_first",
) -> Tensor:
    """The mean of the elements under each window of (batch, channels, height, width)."""

def avg_pool3d(
    input: _ArrayLike,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
    *,
    dilation: int | Sequence[int] = 1,
    layout: str = "channels_first",
) -> Tensor:
    """The mean of the elements under each window of (batch, channels, depth, height, width)."""

def batch_norm(
    input: _ArrayLike,
    running_mean: _ArrayLike | None = None,
    running_var: _ArrayLike | None = None,
    weight: _ArrayLike | None = None,
    bias: _ArrayLike | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-05,
    *,
    layout: str = "channels_first",
) -> Any:
    """Each channel brought to mean 0 and variance 1, by the batch if `training`, else by the
    running statistics; then scaled.
    """

def bilinear(
    input1: _ArrayLike, input2: _ArrayLike, weight: _ArrayLike, bias: _ArrayLike | None = None
) -> Tensor:
    """`sum_ij input1[i] * weight[o, i, j] * input2[j] + bias[o]` for vectors on the last axis."""

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

def channel_shuffle(input: _ArrayLike, groups: int, *, layout: str = "channels_first") -> Tensor:
    """The channels of several groups dealt out in turn."""

def contrastive_loss(
    input1: _ArrayLike,
    input2: _ArrayLike,
    target: _ArrayLike,
    margin: float = 1.0,
    reduction: str = "mean",
) -> Tensor:
    """`target * d**2 + (1 - target) * max(margin - d, 0)**2` with the Euclidean distance d."""

def conv1d(
    input: _ArrayLike,
    weight: _ArrayLike,
    bias: _ArrayLike | None = None,
    stride: int | Sequence[int] = 1,
    padding: Any = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    *,
    padding_mode: str = "zeros",
    layout: str = "channels_first",
) -> Tensor:
    """The convolution (without flipping the kernel) of (batch, channels, length) with a weight
    (out channels, channels of a group, kernel).
    """

def conv2d(
    input: _ArrayLike,
    weight: _ArrayLike,
    bias: _ArrayLike | None = None,
    stride: int | Sequence[int] = 1,
    padding: Any = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    *,
    padding_mode: str = "zeros",
    layout: str = "channels_first",
) -> Tensor:
    """The convolution of (batch, channels, height, width) with a weight (out channels, channels
    of a group, height, width); see `conv1d` for the options.
    """

def conv3d(
    input: _ArrayLike,
    weight: _ArrayLike,
    bias: _ArrayLike | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    *,
    padding_mode: str = "zeros",
    layout: str = "channels_first",
) -> Tensor:
    """The convolution of (batch, channels, depth, height, width); see `conv1d` for the options."""

def conv_transpose1d(
    input: _ArrayLike,
    weight: _ArrayLike,
    bias: _ArrayLike | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    output_padding: int | Sequence[int] = 0,
    groups: int = 1,
    dilation: int | Sequence[int] = 1,
    *,
    layout: str = "channels_first",
) -> Tensor:
    """The transpose of `conv1d` with a weight (channels, out channels of a group, kernel)."""

def conv_transpose2d(
    input: _ArrayLike,
    weight: _ArrayLike,
    bias: _ArrayLike | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    output_padding: int | Sequence[int] = 0,
    groups: int = 1,
    dilation: int | Sequence[int] = 1,
    *,
    layout: str = "channels_first",
) -> Tensor:
    """The transpose of `conv2d`; see `conv_transpose1d`."""

def conv_transpose3d(
    input: _ArrayLike,
    weight: _ArrayLike,
    bias: _ArrayLike | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    output_padding: int | Sequence[int] = 0,
    groups: int = 1,
    dilation: int | Sequence[int] = 1,
    *,
    layout: str = "channels_first",
) -> Tensor:
    """The transpose of `conv3d`; see `conv_transpose1d`."""

def cosine_embedding_loss(
    input1: _ArrayLike,
    input2: _ArrayLike,
    target: _ArrayLike,
    margin: float = 0.0,
    *,
    reduction: str = "mean",
) -> Tensor:
    """`1 - cos` of two vectors where the target is 1, `max(cos - margin, 0)` where it is -1."""

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
    layout: str = "channels_first",
) -> Tensor:
    """The negative log-likelihood of targets under `softmax(input)` along the classes."""

def ctc_loss(
    log_probs: _ArrayLike,
    targets: _ArrayLike,
    input_lengths: _ArrayLike | Sequence[int],
    target_lengths: _ArrayLike | Sequence[int],
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """`-log` of the probability that a sequence, without repetitions and blanks, is the target."""

def deform_conv2d(
    input: _ArrayLike,
    offset: _ArrayLike,
    weight: _ArrayLike,
    bias: _ArrayLike | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    mask: _ArrayLike | None = None,
    *,
    layout: str = "channels_first",
) -> Tensor:
    """A 2-D convolution whose kernel positions are moved by `offset` at every place."""

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

def embedding(
    input: _ArrayLike | scatter_plan,
    weight: _ArrayLike,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
) -> Tensor:
    """The rows of `weight` at the indices `input`."""

def embedding_bag(
    input: _ArrayLike | scatter_plan,
    weight: _ArrayLike,
    offsets: _ArrayLike | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    *,
    per_sample_weights: _ArrayLike | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """The sum, mean or maximum of the rows of `weight` in each bag of indices; 0 in an empty
    bag.
    """

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
    layout: str = "channels_first",
) -> Tensor:
    """The cross entropy of class indices, each times `(1 - p)**gamma` of its probability p."""

def fold(
    input: _ArrayLike,
    output_size: int | Sequence[int],
    kernel_size: int | Sequence[int],
    dilation: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    stride: int | Sequence[int] = 1,
    *,
    layout: str = "channels_first",
) -> Tensor:
    """The transpose of `unfold`: columns added up in an image of `output_size`."""

def fractional_max_pool2d(
    input: _ArrayLike,
    kernel_size: int | Sequence[int],
    output_size: int | Sequence[int] | None = None,
    output_ratio: float | None = None,
    return_indices: bool = False,
    *,
    key: _ArrayLike | None = None,
    _random_samples: _ArrayLike | None = None,
) -> Tensor:
    """The largest element under windows that begin at random places, (batch, channels, height,
    width): as many as `output_size`, or `output_ratio` times the size of the image.
    """

def fractional_max_pool3d(
    input: _ArrayLike,
    kernel_size: int | Sequence[int],
    output_size: int | Sequence[int] | None = None,
    output_ratio: float | None = None,
    return_indices: bool = False,
    *,
    key: _ArrayLike | None = None,
    _random_samples: Any = None,
) -> Tensor:
    """`fractional_max_pool2d` of volumes (batch, channels, depth, height, width)."""

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

def global_avg_pool(input: _ArrayLike, *, layout: str = "channels_first") -> Tensor:
    """The mean of each channel over all spatial axes, which stay with size 1."""

def global_max_pool(input: _ArrayLike, *, layout: str = "channels_first") -> Tensor:
    """The largest element of each channel over all spatial axes, which stay with size 1."""

def glu(input: _ArrayLike, dim: int = -1) -> Tensor:
    """`a * sigmoid(b)` of the two halves of the array along the axis `dim`."""

def grid_sample(
    input: _ArrayLike,
    grid: _ArrayLike,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool = False,
    *,
    layout: str = "channels_first",
) -> Tensor:
    """The array read at the places of a grid, whose last axis is (x, y) or (x, y, z) in [-1,
    1].
    """

def group_norm(
    input: _ArrayLike,
    num_groups: int,
    weight: _ArrayLike | None = None,
    bias: _ArrayLike | None = None,
    eps: float = 1e-05,
    *,
    layout: str = "channels_first",
) -> Tensor:
    """Each group of channels of each example brought to mean 0 and variance 1, then scaled."""

def gru(
    input: _ArrayLike,
    weights: Any,
    hx: _ArrayLike | None = None,
    *,
    bidirectional: bool = False,
    batch_first: bool = False,
    dropout: float = 0.0,
    training: bool = True,
    key: _ArrayLike | None = None,
    lengths: _ArrayLike | None = None,
) -> tuple[Tensor, Tensor]:
    """Layers of `gru_cell` along sequences: (outputs, last states). Arguments are those of
    `rnn`.
    """

def gru_cell(
    input: _ArrayLike,
    hx: _ArrayLike | None,
    weight_ih: _ArrayLike,
    weight_hh: _ArrayLike,
    bias_ih: _ArrayLike | None = None,
    bias_hh: _ArrayLike | None = None,
) -> Tensor:
    """The next state, `(1 - z) * n + z * h`, where the new part n sees the state through a
    gate.
    """

def gumbel_softmax(
    logits: _ArrayLike, tau: float = 1.0, hard: bool = False, *, dim: int = -1, key: _ArrayLike
) -> Tensor:
    """The softmax of `(logits + gumbel noise) / tau`: a differentiable draw of one class."""

def hardshrink(input: _ArrayLike, lambd: float = 0.5) -> Tensor:
    """`x`, or 0 where it is within [-lambd, lambd]."""

def hardsigmoid(input: _ArrayLike) -> Tensor:
    """`min(max(x + 3, 0), 6) / 6`."""

def hardswish(input: _ArrayLike) -> Tensor:
    """`x * min(max(x + 3, 0), 6) / 6`."""

def hardtanh(input: _ArrayLike, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
    """`x` limited to [min_val, max_val], whose derivative at the limits is 0."""

def hinge_embedding_loss(
    input: _ArrayLike, target: _ArrayLike, margin: float = 1.0, *, reduction: str = "mean"
) -> Tensor:
    """`input` where the target is 1, `max(margin - input, 0)` where it is -1."""

def hinge_loss(
    input: _ArrayLike, target: _ArrayLike, margin: float = 1.0, reduction: str = "mean"
) -> Tensor:
    """`max(margin - input * target, 0)` of scores and signs."""

def huber_loss(
    input: _ArrayLike,
    target: _ArrayLike,
    reduction: str = "mean",
    delta: float = 1.0,
    weight: _ArrayLike | None = None,
) -> Tensor:
    """`d**2 / 2` for `d = abs(input - target)` below delta, above it `delta * (d - delta / 2)`."""

def instance_norm(
    input: _ArrayLike,
    running_mean: _ArrayLike | None = None,
    running_var: _ArrayLike | None = None,
    weight: _ArrayLike | None = None,
    bias: _ArrayLike | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-05,
    *,
    layout: str = "channels_first",
) -> Any:
    """Each channel of each example brought to mean 0 and variance 1, then scaled."""

def interpolate(
    input: _ArrayLike,
    size: int | Sequence[int] | None = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
    *,
    layout: str = "channels_first",
) -> Tensor:
    """The array with its spatial axes brought to `size`, or to `scale_factor` times their
    length.
    """

def kl_div(
    input: _ArrayLike, target: _ArrayLike, *, reduction: str = "mean", log_target: bool = False
) -> Tensor:
    """`target * (log(target) - input)`, where `input` and with `log_target` the target are
    logs.
    """

def l1_loss(
    input: _ArrayLike,
    target: _ArrayLike,
    *,
    reduction: str = "mean",
    weight: _ArrayLike | None = None,
) -> Tensor:
    """The mean of `abs(input - target)`; with weights, the sum over the sum of these."""

def layer_norm(
    input: _ArrayLike,
    normalized_shape: int | Sequence[int],
    weight: _ArrayLike | None = None,
    bias: _ArrayLike | None = None,
    eps: float = 1e-05,
) -> Tensor:
    """`(x - mean) / sqrt(var + eps) * weight + bias` over the last axes."""

def leaky_relu(input: _ArrayLike, negative_slope: float = 0.01) -> Tensor:
    """`x` where it is positive, elsewhere `negative_slope * x`."""

def linear(input: _ArrayLike, weight: _ArrayLike, bias: _ArrayLike | None = None) -> Tensor:
    """`input @ weight.T + bias`, with a weight (out, in), or (in,) for one number as output."""

def linear_cross_entropy(
    input: _ArrayLike,
    linear_weight: _ArrayLike,
    target: _ArrayLike,
    *,
    linear_bias: _ArrayLike | None = None,
    weight: _ArrayLike | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Tensor:
    """`cross_entropy(linear(input, linear_weight), target)` for inputs (N, in) or (in,)."""

def local_response_norm(
    input: _ArrayLike,
    size: int,
    alpha: float = 0.0001,
    beta: float = 0.75,
    k: float = 1.0,
    *,
    layout: str = "channels_first",
) -> Tensor:
    """`x / (k + alpha * m)**beta` with m the mean square over `size` neighbouring channels."""

def log_softmax(input: _ArrayLike, dim: int, *, dtype: _DTypeLike | None = None) -> Tensor:
    """`x - log(sum(exp(x)))` along the axis `dim`, after a cast to `dtype`."""

def logsigmoid(input: _ArrayLike) -> Tensor:
    """`log(sigmoid(x))` without underflow."""

def lp_pool1d(
    input: _ArrayLike,
    norm_type: float,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    ceil_mode: bool = False,
    *,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    layout: str = "channels_first",
) -> Tensor:
    """`(sum x**p)**(1/p)` over each window of (batch, channels, length), with p = `norm_type`."""

def lp_pool2d(
    input: _ArrayLike,
    norm_type: float,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    ceil_mode: bool = False,
    *,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    layout: str = "channels_first",
) -> Tensor:
    """`(sum x**p)**(1/p)` over each window of (batch, channels, height, width); see
    `lp_pool1d`.
    """

def lp_pool3d(
    input: _ArrayLike,
    norm_type: float,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    ceil_mode: bool = False,
    *,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    layout: str = "channels_first",
) -> Tensor:
    """`(sum x**p)**(1/p)` over each window of (batch, channels, depth, height, width); see
    `lp_pool1d`.
    """

def lstm(
    input: _ArrayLike,
    weights: Any,
    hx: Sequence[_ArrayLike] | None = None,
    *,
    bidirectional: bool = False,
    batch_first: bool = False,
    dropout: float = 0.0,
    training: bool = True,
    key: _ArrayLike | None = None,
    lengths: _ArrayLike | None = None,
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Layers of `lstm_cell` along sequences: (outputs, (last hidden states, last cell states))."""

def lstm_cell(
    input: _ArrayLike,
    hx: Sequence[_ArrayLike] | None,
    weight_ih: _ArrayLike,
    weight_hh: _ArrayLike,
    bias_ih: _ArrayLike | None = None,
    bias_hh: _ArrayLike | None = None,
) -> tuple[Tensor, Tensor]:
    """The next (hidden, cell) state: `c = f * c + i * g`, `h = o * tanh(c)`."""

def margin_ranking_loss(
    input1: _ArrayLike,
    input2: _ArrayLike,
    target: _ArrayLike,
    margin: float = 0.0,
    *,
    reduction: str = "mean",
) -> Tensor:
    """`max(-target * (input1 - input2) + margin, 0)`: a target of 1 wants the first one larger."""

def max_pool1d(
    input: _ArrayLike,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
    *,
    layout: str = "channels_first",
) -> Tensor | Any:
    """The largest element under each window of (batch, channels, length); NaN if there is one."""

def max_pool2d(
    input: _ArrayLike,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
    *,
    layout: str = "channels_first",
) -> Tensor | Any:
    """The largest element under each window of (batch, channels, height, width); see
    `max_pool1d`.
    """

def max_pool3d(
    input: _ArrayLike,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
    *,
    layout: str = "channels_first",
) -> Tensor | Any:
    """The largest element under each window of (batch, channels, depth, height, width); see
    `max_pool1d`.
    """

def max_unpool1d(
    input: _ArrayLike,
    indices: _ArrayLike,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    output_size: int | Sequence[int] | None = None,
    *,
    layout: str = "channels_first",
) -> Tensor:
    """Zeros, and the elements of `input` at the places that `max_pool1d` returned as `indices`."""

def max_unpool2d(
    input: _ArrayLike,
    indices: _ArrayLike,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    output_size: int | Sequence[int] | None = None,
    *,
    layout: str = "channels_first",
) -> Tensor:
    """Zeros, and the elements of `input` at the places that `max_pool2d` returned as `indices`."""

def max_unpool3d(
    input: _ArrayLike,
    indices: _ArrayLike,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    output_size: int | Sequence[int] | None = None,
    *,
    layout: str = "channels_first",
) -> Tensor:
    """Zeros, and the elements of `input` at the places that `max_pool3d` returned as `indices`."""

def mish(input: _ArrayLike) -> Tensor:
    """`x * tanh(softplus(x))`."""

def mse_loss(
    input: _ArrayLike,
    target: _ArrayLike,
    *,
    reduction: str = "mean",
    weight: _ArrayLike | None = None,
) -> Tensor:
    """The mean of `abs(input - target)**2`; with weights, the sum over the sum of these."""

def multi_head_attention(
    query: _ArrayLike,
    key: _ArrayLike,
    value: _ArrayLike,
    num_heads: int,
    in_proj_weight: _ArrayLike | Sequence[_ArrayLike],
    in_proj_bias: _ArrayLike | None = None,
    out_proj_weight: _ArrayLike | None = None,
    out_proj_bias: _ArrayLike | None = None,
    *,
    key_padding_mask: _ArrayLike | None = None,
    need_weights: bool = True,
    attn_mask: _ArrayLike | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
    bias_k: _ArrayLike | None = None,
    bias_v: _ArrayLike | None = None,
    add_zero_attn: bool = False,
    static_k: _ArrayLike | None = None,
    static_v: _ArrayLike | None = None,
    dropout_p: float = 0.0,
    dropout_key: Any = None,
    batch_first: bool = False,
) -> tuple[Tensor, ...]:
    """Attention of `num_heads` heads over projections of its inputs: (result, weights or None)."""

def multi_head_attention_forward(
    query: _ArrayLike,
    key: _ArrayLike,
    value: _ArrayLike,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: _ArrayLike | None,
    in_proj_bias: _ArrayLike | None,
    bias_k: Any,
    bias_v: Any,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: _ArrayLike,
    out_proj_bias: _ArrayLike,
    training: bool = True,
    key_padding_mask: Any = None,
    need_weights: bool = True,
    attn_mask: Any = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: _ArrayLike | None = None,
    k_proj_weight: _ArrayLike | None = None,
    v_proj_weight: _ArrayLike | None = None,
    static_k: Any = None,
    static_v: Any = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
    *,
    dropout_key: Any = None,
) -> tuple[Tensor, Tensor]:
    """`multi_head_attention` with the arguments of torch.nn.functional."""

def multi_margin_loss(
    input: _ArrayLike,
    target: _ArrayLike,
    p: int = 1,
    margin: float = 1.0,
    weight: _ArrayLike | None = None,
    *,
    reduction: str = "mean",
) -> Tensor:
    """The sum over the other classes i of `max(margin - x[target] + x[i], 0)**p / C`."""

def multilabel_margin_loss(
    input: _ArrayLike, target: _ArrayLike, *, reduction: str = "mean"
) -> Tensor:
    """The sum of `max(1 - x[j] + x[i], 0) / C` over labels j and the classes i that are none."""

def multilabel_soft_margin_loss(
    input: _ArrayLike,
    target: _ArrayLike,
    weight: _ArrayLike | None = None,
    *,
    reduction: str = "mean",
) -> Tensor:
    """The mean over the last axis, the classes, of the binary cross entropy of
    `sigmoid(input)`.
    """

def nll_loss(
    input: _ArrayLike,
    target: _ArrayLike,
    weight: _ArrayLike | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    layout: str = "channels_first",
) -> Tensor:
    """`-weight[t] * input[t]` of log-probabilities (N, C, ...) and class indices t (N, ...)."""

def normalize(input: _ArrayLike, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Tensor:
    """`x / max(norm(x), eps)` with the p-norm along the axis `dim`; zeros stay zeros."""

def one_hot(tensor: _ArrayLike, num_classes: int = -1) -> Tensor:
    """The int64 array (..., C) with a 1 at each class index; -1 counts classes up to the
    largest.
    """

def pad(
    input: _ArrayLike, pad: int | Sequence[int], mode: str = "constant", value: float | None = None
) -> Tensor:
    """The array with borders; `pad` is (before, after) for the last axis, then the one before
    it.
    """

def pairwise_distance(
    x1: _ArrayLike, x2: _ArrayLike, p: float = 2.0, eps: float = 1e-06, keepdim: bool = False
) -> Tensor:
    """The p-norm of `x1 - x2 + eps` along the last axis."""

def pdist(input: _ArrayLike, p: float = 2.0) -> Tensor:
    """The distances of all pairs of rows of a matrix, each once: (0, 1), (0, 2), ..., (1, 2),
    ...
    """

def pixel_shuffle(
    input: _ArrayLike, upscale_factor: int, *, layout: str = "channels_first"
) -> Tensor:
    """Channels spread over places: r*r of them become one with r times the height and width."""

def pixel_unshuffle(
    input: _ArrayLike, downscale_factor: int, *, layout: str = "channels_first"
) -> Tensor:
    """Places gathered into channels: the inverse of `pixel_shuffle`."""

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

def relu6(input: _ArrayLike) -> Tensor:
    """`min(max(x, 0), 6)`."""

def rms_norm(
    input: _ArrayLike,
    normalized_shape: int | Sequence[int],
    weight: _ArrayLike | None = None,
    eps: float | None = None,
) -> Tensor:
    """`x / sqrt(mean(x**2) + eps) * weight` over the last axes; `eps` is the dtype's, if None."""

def rnn(
    input: _ArrayLike,
    weights: Any,
    hx: _ArrayLike | None = None,
    *,
    nonlinearity: str = "tanh",
    bidirectional: bool = False,
    batch_first: bool = False,
    dropout: float = 0.0,
    training: bool = True,
    key: _ArrayLike | None = None,
    lengths: _ArrayLike | None = None,
) -> tuple[Tensor, Tensor]:
    """Layers of h = tanh(weight_ih @ x + bias_ih + weight_hh @ h + bias_hh): (outputs, last h)."""

def rnn_cell(
    input: _ArrayLike,
    hx: _ArrayLike | None,
    weight_ih: _ArrayLike,
    weight_hh: _ArrayLike,
    bias_ih: _ArrayLike | None = None,
    bias_hh: _ArrayLike | None = None,
    nonlinearity: str = "tanh",
) -> Tensor:
    """The next state, tanh (or relu) of `weight_ih @ x + bias_ih + weight_hh @ h + bias_hh`."""

def rrelu(
    input: _ArrayLike,
    lower: float = 0.125,
    upper: float = 0.3333333333333333,
    training: bool = False,
    *,
    key: _ArrayLike | None = None,
) -> Tensor:
    """`leaky_relu` with a random slope from [lower, upper] for each element while `training`,
    else the mean of both.
    """

def scaled_dot_product_attention(
    query: _ArrayLike,
    key: _ArrayLike,
    value: _ArrayLike,
    attn_mask: _ArrayLike | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    dropout_key: _ArrayLike | None = None,
) -> Tensor:
    """softmax(query @ key.T * scale + attn_mask) @ value, in memory linear in the lengths."""

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
    input: _ArrayLike, target: _ArrayLike, *, reduction: str = "mean", beta: float = 1.0
) -> Tensor:
    """`d**2 / (2 * beta)` where `d = abs(input - target)` is below beta, elsewhere `d - beta /
    2`.
    """

def soft_margin_loss(input: _ArrayLike, target: _ArrayLike, *, reduction: str = "mean") -> Tensor:
    """`log(1 + exp(-input * target))` of scores and signs."""

def softmax(input: _ArrayLike, dim: int, *, dtype: _DTypeLike | None = None) -> Tensor:
    """`exp(x) / sum(exp(x))` along the axis `dim`, after a cast to `dtype`."""

def softmin(input: _ArrayLike, dim: int, *, dtype: _DTypeLike | None = None) -> Tensor:
    """The softmax of -x."""

def softplus(input: _ArrayLike, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """`log(1 + exp(beta * x)) / beta`, and x itself where `beta * x` is above the threshold."""

def softshrink(input: _ArrayLike, lambd: float = 0.5) -> Tensor:
    """`x` moved towards 0 by `lambd`, and 0 where it would pass it."""

def softsign(input: _ArrayLike) -> Tensor:
    """`x / (1 + abs(x))`."""

def spectral_norm(
    weight: _ArrayLike,
    u: _ArrayLike | None = None,
    n_power_iterations: int = 1,
    dim: int = 0,
    eps: float = 1e-12,
) -> Spectral:
    """The weight over its largest singular value, which power iterations estimate from `u`."""

def swiglu(input: _ArrayLike, dim: int = -1) -> Tensor:
    """`silu(a) * b` of the two halves of the array along the axis `dim`."""

def tanh(input: _ArrayLike) -> Tensor:
    """The hyperbolic tangent."""

def tanhshrink(input: _ArrayLike) -> Tensor:
    """`x - tanh(x)`."""

def threshold(input: _ArrayLike, threshold: float, value: float) -> Tensor:
    """`x` where it is above the threshold, elsewhere `value`."""

def triplet_margin_loss(
    anchor: _ArrayLike,
    positive: _ArrayLike,
    negative: _ArrayLike,
    margin: float = 1.0,
    p: float = 2.0,
    eps: float = 1e-06,
    swap: bool = False,
    *,
    reduction: str = "mean",
) -> Tensor:
    """`max(d(anchor, positive) - d(anchor, negative) + margin, 0)` with the p-norm as distance
    d.
    """

def triplet_margin_with_distance_loss(
    anchor: _ArrayLike,
    positive: _ArrayLike,
    negative: _ArrayLike,
    *,
    distance_function: Any = None,
    margin: float = 1.0,
    swap: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """`triplet_margin_loss` with a distance of your own (None: `pairwise_distance`)."""

def unfold(
    input: _ArrayLike,
    kernel_size: int | Sequence[int],
    dilation: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    stride: int | Sequence[int] = 1,
    *,
    layout: str = "channels_first",
) -> Tensor:
    """The elements under each place of a kernel as columns: (batch, channels x kernel, places)."""

def upsample(
    input: _ArrayLike,
    size: int | None = None,
    scale_factor: int | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
) -> Tensor:
    """`interpolate` under its older name."""

def weight_norm(v: _ArrayLike, g: _ArrayLike, dim: int | None = 0) -> Tensor:
    """`g * v / norm(v)`, with one norm for each place along `dim`, or one in all if None."""
