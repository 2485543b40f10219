"""Functions without parameters as layers, and layers one after another."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, ClassVar

from pullback.core.errors import DTypeError
from pullback.ir.op import REGISTRY, own_handles
from pullback.module import Module
from pullback.nn.rectifiers import prelu
from pullback.ops.creation import full
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
    "Flatten",
    "Hardshrink",
    "Hardsigmoid",
    "Hardswish",
    "Hardtanh",
    "Identity",
    "Lambda",
    "LeakyReLU",
    "LogSigmoid",
    "LogSoftmax",
    "MaxPool1d",
    "MaxPool2d",
    "MaxPool3d",
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


class Function(Module):
    """A function of `pb.nn` with its options: the base of the layers without parameters."""

    function: ClassVar[Callable[..., Any]]
    signature: ClassVar[inspect.Signature]

    def __init__(self, *args: Any, **options: Any):
        try:
            self.options = dict(self.signature.bind(*args, **options).arguments)
        except TypeError as error:
            name, taken = type(self).__name__, ", ".join(self.signature.parameters)
            raise DTypeError(f"{name}: {error}. It takes {taken or 'no options'}.") from None

    def __call__(self, input: Any) -> Any:
        return type(self).function(input, **self.options)


def _layer(name: str, function_name: str) -> type[Function]:
    """The layer `name`, which is nothing but a function of `pb.nn`."""
    function = REGISTRY[f"nn.{function_name}"].function
    signature = inspect.signature(function)
    options = list(signature.parameters.values())[1:]
    members = {
        "function": staticmethod(function),
        "signature": signature.replace(parameters=options),
        "__doc__": f"`pb.nn.{function.__name__}` as a layer; its options are the function's.",
        "__module__": __name__,
    }
    return type(name, (Function,), members)


AdaptiveAvgPool1d = _layer("AdaptiveAvgPool1d", "adaptive_avg_pool1d")
AdaptiveAvgPool2d = _layer("AdaptiveAvgPool2d", "adaptive_avg_pool2d")
AdaptiveAvgPool3d = _layer("AdaptiveAvgPool3d", "adaptive_avg_pool3d")
AdaptiveMaxPool1d = _layer("AdaptiveMaxPool1d", "adaptive_max_pool1d")
AdaptiveMaxPool2d = _layer("AdaptiveMaxPool2d", "adaptive_max_pool2d")
AdaptiveMaxPool3d = _layer("AdaptiveMaxPool3d", "adaptive_max_pool3d")
AvgPool1d = _layer("AvgPool1d", "avg_pool1d")
AvgPool2d = _layer("AvgPool2d", "avg_pool2d")
AvgPool3d = _layer("AvgPool3d", "avg_pool3d")
CELU = _layer("CELU", "celu")
ELU = _layer("ELU", "elu")
GELU = _layer("GELU", "gelu")
GLU = _layer("GLU", "glu")
Hardshrink = _layer("Hardshrink", "hardshrink")
Hardsigmoid = _layer("Hardsigmoid", "hardsigmoid")
Hardswish = _layer("Hardswish", "hardswish")
Hardtanh = _layer("Hardtanh", "hardtanh")
LeakyReLU = _layer("LeakyReLU", "leaky_relu")
LogSigmoid = _layer("LogSigmoid", "logsigmoid")
LogSoftmax = _layer("LogSoftmax", "log_softmax")
MaxPool1d = _layer("MaxPool1d", "max_pool1d")
MaxPool2d = _layer("MaxPool2d", "max_pool2d")
MaxPool3d = _layer("MaxPool3d", "max_pool3d")
Mish = _layer("Mish", "mish")
PixelShuffle = _layer("PixelShuffle", "pixel_shuffle")
PixelUnshuffle = _layer("PixelUnshuffle", "pixel_unshuffle")
ReLU = _layer("ReLU", "relu")
ReLU6 = _layer("ReLU6", "relu6")
SELU = _layer("SELU", "selu")
SiLU = _layer("SiLU", "silu")
Sigmoid = _layer("Sigmoid", "sigmoid")
Softmax = _layer("Softmax", "softmax")
Softmin = _layer("Softmin", "softmin")
Softplus = _layer("Softplus", "softplus")
Softshrink = _layer("Softshrink", "softshrink")
Softsign = _layer("Softsign", "softsign")
Tanh = _layer("Tanh", "tanh")
Tanhshrink = _layer("Tanhshrink", "tanhshrink")
Threshold = _layer("Threshold", "threshold")
Upsample = _layer("Upsample", "interpolate")
