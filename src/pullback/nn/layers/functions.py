"""Functions without parameters as layers, and layers one after another."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from math import prod
from typing import Any, ClassVar

from pullback.core.errors import DTypeError, ShapeError
from pullback.ir.op import REGISTRY, own_handles
from pullback.module import Module
from pullback.nn.rectifiers import prelu
from pullback.ops.creation import full
from pullback.ops.families import normalise_axis
from pullback.ops.movement import reshape
from pullback.ops.random import fold_in

__all__ = [
    "CELU",
    "ELU",
    "GELU",
    "GLU",
    "SELU",
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "AdaptiveAvgPool3d",
    "AdaptiveMaxPool1d",
    "AdaptiveMaxPool2d",
    "AdaptiveMaxPool3d",
    "AvgPool1d",
    "AvgPool2d",
    "AvgPool3d",
    "ChannelShuffle",
    "Flatten",
    "Fold",
    "Hardshrink",
    "Hardsigmoid",
    "Hardswish",
    "Hardtanh",
    "Identity",
    "LPPool1d",
    "LPPool2d",
    "LPPool3d",
    "Lambda",
    "LeakyReLU",
    "LocalResponseNorm",
    "LogSigmoid",
    "LogSoftmax",
    "MaxPool1d",
    "MaxPool2d",
    "MaxPool3d",
    "MaxUnpool1d",
    "MaxUnpool2d",
    "MaxUnpool3d",
    "Mish",
    "PReLU",
    "PixelShuffle",
    "PixelUnshuffle",
    "ReLU",
    "ReLU6",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Softmin",
    "Softplus",
    "Softshrink",
    "Softsign",
    "Tanh",
    "Tanhshrink",
    "Threshold",
    "Unflatten",
    "Unfold",
    "Upsample",
]


class Identity(Module):
    """What is given to it, whatever else is.

    >>> pb.nn.Identity()(pb.ones(2))
    tensor([1., 1.], float32, cpu)
    """

    def __call__(self, input: Any) -> Any:
        return own_handles(input)


class Lambda(Module):
    """A function as a layer.

    >>> pb.nn.Lambda(lambda x: 2 * x)(pb.ones(2))
    tensor([2., 2.], float32, cpu)
    """

    def __init__(self, function: Callable[..., Any]):
        self.function = function

    def __call__(self, *args: Any) -> Any:
        return self.function(*args)


class Flatten(Module):
    """The axes from `start_dim` to `end_dim` as one.

    >>> pb.nn.Flatten()(pb.ones((2, 3, 4))).shape
    (2, 12)
    """

    def __init__(self, start_dim: int = 1, end_dim: int = -1):
        self.start_dim, self.end_dim = start_dim, end_dim

    def __call__(self, input: Any) -> Any:
        shape = input.shape
        first, last = self.start_dim % len(shape), self.end_dim % len(shape)
        merged = -1 if 0 not in shape else 0
        return reshape(input, (*shape[:first], merged, *shape[last + 1 :]))


class Unflatten(Module):
    """One axis as several, whose sizes may hold one -1.

    >>> pb.nn.Unflatten(1, (2, -1))(pb.ones((5, 6))).shape
    (5, 2, 3)
    """

    def __init__(self, dim: int, unflattened_size: tuple[int, ...]):
        self.dim, self.unflattened_size = dim, tuple(unflattened_size)

    def __call__(self, input: Any) -> Any:
        shape, at = input.shape, normalise_axis("Unflatten", self.dim, input.ndim)
        known = prod(n for n in self.unflattened_size if n != -1)
        sizes = [shape[at] // known if n == -1 and known else n for n in self.unflattened_size]
        if prod(sizes) != shape[at] or self.unflattened_size.count(-1) > 1:
            raise ShapeError(
                f"Unflatten: an axis of size {shape[at]} has no sizes {self.unflattened_size}."
            )
        return reshape(input, (*shape[:at], *sizes, *shape[at + 1 :]))


class PReLU(Module):
    """A rectifier whose slope below zero is a parameter, one for all channels or for each.

    >>> pb.nn.PReLU()(pb.tensor([-2.0, 2.0]))
    tensor([-0.5,  2. ], float32, cpu)
    """

    def __init__(self, num_parameters: int = 1, init: float = 0.25, *, dtype: Any = None):
        self.weight = full(num_parameters, init, dtype=dtype)

    def __call__(self, input: Any) -> Any:
        return prelu(input, self.weight)


class Sequential(Module):
    """Layers, or any functions, one after another.

    `training` and `key` go to those layers that take them; each gets a key of its own.

    >>> keys = pb.random.split(pb.random.key(0))
    >>> model = pb.nn.Sequential(
    ...     pb.nn.Linear(4, 8, key=keys[0]),
    ...     pb.nn.relu,
    ...     pb.nn.Dropout(0.1),
    ...     pb.nn.Linear(8, 2, key=keys[1]),
    ... )
    >>> model(pb.ones((3, 4)), training=True, key=pb.random.key(1)).shape
    (3, 2)
    """

    def __init__(self, *layers: Callable[..., Any]):
        for layer in layers:
            if not callable(layer):
                hint = " Write Sequential(*layers)." if isinstance(layer, (list, tuple)) else ""
                got = type(layer).__name__
                raise DTypeError(f"Sequential: layers are modules or functions, got {got}.{hint}")
        self.layers = list(layers)

    def __call__(self, input: Any, *, training: bool = False, key: Any = None) -> Any:
        if not self.layers:
            return own_handles(input)
        for i, layer in enumerate(self.layers):
            taken = _call_arguments(type(layer)) if issubclass(type(layer), Module) else ()
            given: dict[str, Any] = {}
            if "training" in taken:
                given["training"] = training
            if "key" in taken and key is not None:
                given["key"] = fold_in(key, i)
            input = layer(input, **given)
        return input

    def __getitem__(self, i: Any) -> Any:
        return Sequential(*self.layers[i]) if isinstance(i, slice) else self.layers[i]

    def __len__(self) -> int:
        return len(self.layers)


_arguments: dict[type, frozenset[str]] = {}


def _call_arguments(cls: type) -> frozenset[str]:
    """The names of the arguments that calls of a module take."""
    if cls not in _arguments:
        _arguments[cls] = frozenset(inspect.signature(cls.__call__).parameters)
    return _arguments[cls]


class FunctionLayer(Module):
    """A function of `pb.nn` with its options: the base of the layers without parameters."""

    buffers = ("options",)  # weights of classes, say, are not trained
    function: ClassVar[Callable[..., Any]]
    signature: ClassVar[inspect.Signature]
    operands: ClassVar[int]

    def __init__(self, *args: Any, **options: Any):
        try:
            self.options = dict(self.signature.bind(*args, **options).arguments)
        except TypeError as error:
            name, taken = type(self).__name__, ", ".join(self.signature.parameters)
            raise DTypeError(f"{name}: {error}. It takes {taken or 'no options'}.") from None

    def __call__(self, *inputs: Any) -> Any:
        if len(inputs) != self.operands:
            name, count = type(self).__name__, self.operands
            takes = "one array" if count == 1 else f"{count} arrays"
            raise DTypeError(f"{name}: takes {takes}, got {len(inputs)}.")
        return type(self).function(*inputs, **self.options)


def layer_of(
    name: str, function_name: str, operands: int = 1, home: str = __name__
) -> type[FunctionLayer]:
    """The layer `name` of the module `home`, which is nothing but a function of `pb.nn` of so many
    arrays.
    """
    function = REGISTRY[f"nn.{function_name}"].function
    signature = inspect.signature(function)
    options = list(signature.parameters.values())[operands:]
    members = {
        "operands": operands,
        "function": staticmethod(function),
        "signature": signature.replace(parameters=options),
        "__doc__": f"`pb.nn.{function.__name__}` as a layer; its options are the function's.",
        "__module__": home,
    }
    return type(name, (FunctionLayer,), members)


AdaptiveAvgPool1d = layer_of("AdaptiveAvgPool1d", "adaptive_avg_pool1d")
AdaptiveAvgPool2d = layer_of("AdaptiveAvgPool2d", "adaptive_avg_pool2d")
AdaptiveAvgPool3d = layer_of("AdaptiveAvgPool3d", "adaptive_avg_pool3d")
AdaptiveMaxPool1d = layer_of("AdaptiveMaxPool1d", "adaptive_max_pool1d")
AdaptiveMaxPool2d = layer_of("AdaptiveMaxPool2d", "adaptive_max_pool2d")
AdaptiveMaxPool3d = layer_of("AdaptiveMaxPool3d", "adaptive_max_pool3d")
AvgPool1d = layer_of("AvgPool1d", "avg_pool1d")
AvgPool2d = layer_of("AvgPool2d", "avg_pool2d")
AvgPool3d = layer_of("AvgPool3d", "avg_pool3d")
CELU = layer_of("CELU", "celu")
ELU = layer_of("ELU", "elu")
GELU = layer_of("GELU", "gelu")
GLU = layer_of("GLU", "glu")
Hardshrink = layer_of("Hardshrink", "hardshrink")
Hardsigmoid = layer_of("Hardsigmoid", "hardsigmoid")
Hardswish = layer_of("Hardswish", "hardswish")
Hardtanh = layer_of("Hardtanh", "hardtanh")
LeakyReLU = layer_of("LeakyReLU", "leaky_relu")
LogSigmoid = layer_of("LogSigmoid", "logsigmoid")
LogSoftmax = layer_of("LogSoftmax", "log_softmax")
MaxPool1d = layer_of("MaxPool1d", "max_pool1d")
MaxPool2d = layer_of("MaxPool2d", "max_pool2d")
MaxPool3d = layer_of("MaxPool3d", "max_pool3d")
Mish = layer_of("Mish", "mish")
PixelShuffle = layer_of("PixelShuffle", "pixel_shuffle")
PixelUnshuffle = layer_of("PixelUnshuffle", "pixel_unshuffle")
ReLU = layer_of("ReLU", "relu")
ReLU6 = layer_of("ReLU6", "relu6")
SELU = layer_of("SELU", "selu")
SiLU = layer_of("SiLU", "silu")
Sigmoid = layer_of("Sigmoid", "sigmoid")
Softmax = layer_of("Softmax", "softmax")
Softmin = layer_of("Softmin", "softmin")
Softplus = layer_of("Softplus", "softplus")
Softshrink = layer_of("Softshrink", "softshrink")
Softsign = layer_of("Softsign", "softsign")
Tanh = layer_of("Tanh", "tanh")
Tanhshrink = layer_of("Tanhshrink", "tanhshrink")
Threshold = layer_of("Threshold", "threshold")
Upsample = layer_of("Upsample", "interpolate")
ChannelShuffle = layer_of("ChannelShuffle", "channel_shuffle")
Fold = layer_of("Fold", "fold")
LPPool1d = layer_of("LPPool1d", "lp_pool1d")
LPPool2d = layer_of("LPPool2d", "lp_pool2d")
LPPool3d = layer_of("LPPool3d", "lp_pool3d")
LocalResponseNorm = layer_of("LocalResponseNorm", "local_response_norm")
MaxUnpool1d = layer_of("MaxUnpool1d", "max_unpool1d", 2)
MaxUnpool2d = layer_of("MaxUnpool2d", "max_unpool2d", 2)
MaxUnpool3d = layer_of("MaxUnpool3d", "max_unpool3d", 2)
Unfold = layer_of("Unfold", "unfold")
