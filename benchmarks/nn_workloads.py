"""The workloads of `pullback bench nn`: layers, their gradients and their second derivatives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.workloads import Inputs, Sizes, Workload

__all__ = ["LAYERS", "NN_WORKLOADS", "Layer", "layer_of"]

PREFIX = "nn."  # begins the names of these workloads, and
SECOND = "_second"  # ends that of a second derivative


@dataclass(frozen=True)
class Layer:
    """A function of pb.nn as a workload.

    `call(nn, fixed, *arrays)` is the layer in the words of torch.nn.functional, where `fixed` are
    arrays that it is not differentiated by.
    """

    name: str
    function: str  # its name in pb.nn: without it there is no workload
    title: str
    call: Callable[..., Any]
    arrays: Inputs  # what it is differentiated by
    sizes: Sizes
    quick: Sizes
    bar: float
    flops: Callable[[Sizes], float] = lambda s: 0.0
    fixed: Inputs = lambda rng, s: ()
    result: Callable[[Sizes], tuple[int, ...]] | None = None  # its shape; None: that of arrays[0]


def _normal(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> np.ndarray:
    return rng.standard_normal(shape, np.float32) * np.float32(scale)


def _image(s: Sizes) -> tuple[int, ...]:
    return s["batch"], s["channels"], s["side"], s["side"]


def _conv2d(rng: np.random.Generator, s: Sizes) -> tuple:
    c = s["channels"]
    return _normal(rng, *_image(s)), _normal(rng, c, c, 3, 3, scale=(9 * c) ** -0.5)


def _conv1d(rng: np.random.Generator, s: Sizes) -> tuple:
    c = s["channels"]
    x = _normal(rng, s["batch"], c, s["length"])
    return x, _normal(rng, c, c, 9, scale=(9 * c) ** -0.5)


def _depthwise(rng: np.random.Generator, s: Sizes) -> tuple:
    return _normal(rng, *_image(s)), _normal(rng, s["channels"], 1, 3, 3, scale=1 / 3)


def _pixels(rng: np.random.Generator, s: Sizes) -> tuple:
    return (_normal(rng, *_image(s)),)


def _scaled(factor: float) -> Callable[[Sizes], tuple[int, ...]]:
    return lambda s: (*_image(s)[:2], int(s["side"] * factor), int(s["side"] * factor))


def _table(rng: np.random.Generator, s: Sizes) -> tuple:
    return (_normal(rng, s["rows"], s["width"]),)


def _tokens(rng: np.random.Generator, s: Sizes) -> tuple:
    return (rng.integers(0, s["rows"], s["tokens"]),)


def _heads(rng: np.random.Generator, s: Sizes) -> tuple:
    shape = 1, s["heads"], s["length"], s["width"]
    return tuple(_normal(rng, *shape) for _ in range(3))


def _lstm(rng: np.random.Generator, s: Sizes) -> tuple:
    h = s["hidden"]
    x = _normal(rng, s["steps"], s["batch"], h)
    weights = [_normal(rng, 4 * h, h, scale=h**-0.5) for _ in range(2)]
    return x, *weights, *[_normal(rng, 4 * h, scale=0.1) for _ in range(2)]


def _conv_flops(s: Sizes) -> float:
    """Three products: the output, and the two gradients."""
    pixels = s["batch"] * s.get("length", s.get("side", 1) ** 2)
    return 3 * 2.0 * pixels * s["channels"] ** 2 * 9


IMAGES = {"batch": 32, "channels": 64, "side": 56}
FEW_IMAGES = {"batch": 2, "channels": 4, "side": 8}

LAYERS = {
    layer.name: layer
    for layer in (
        Layer(
            "conv2d",
            "conv2d",
            "conv2d (32, 64, 56, 56), 3 x 3",
            lambda nn, fixed, x, w: nn.conv2d(x, w, padding=1),
            _conv2d,
            IMAGES,
            FEW_IMAGES,
            1.1,
            _conv_flops,
        ),
        Layer(
            "conv1d",
            "conv1d",
            "conv1d (32, 128, 4096), k 9",
            lambda nn, fixed, x, w: nn.conv1d(x, w, padding=4),
            _conv1d,
            {"batch": 32, "channels": 128, "length": 4096},
            {"batch": 2, "channels": 4, "length": 32},
            1.1,
            _conv_flops,
        ),
        Layer(
            "depthwise",
            "conv2d",
            "depthwise conv2d (32, 64, 56, 56), 3 x 3",
            lambda nn, fixed, x, w: nn.conv2d(x, w, padding=1, groups=w.shape[0]),
            _depthwise,
            IMAGES,
            FEW_IMAGES,
            1.1,
        ),
        Layer(
            "max_pool2d",
            "max_pool2d",
            "max_pool2d (32, 64, 112, 112), 3 x 3, stride 2",
            lambda nn, fixed, x: nn.max_pool2d(x, 3, 2, 1),
            _pixels,
            {**IMAGES, "side": 112},
            FEW_IMAGES,
            0.7,
            result=_scaled(0.5),
        ),
        Layer(
            "interpolate",
            "interpolate",
            "interpolate (32, 64, 56, 56) to 112, bilinear",
            lambda nn, fixed, x: nn.interpolate(x, scale_factor=2.0, mode="bilinear"),
            _pixels,
            IMAGES,
            FEW_IMAGES,
            0.7,
            result=_scaled(2),
        ),
        Layer(
            "embedding",
            "embedding",
            "embedding 50k x 512, 32k tokens",
            lambda nn, fixed, w: nn.embedding(fixed[0], w),
            _table,
            {"rows": 50_000, "width": 512, "tokens": 1 << 15},
            {"rows": 20, "width": 4, "tokens": 50},
            0.7,
            fixed=_tokens,
            result=lambda s: (s["tokens"], s["width"]),
        ),
        Layer(
            "lstm",
            "lstm",
            "lstm, 128 steps, batch 32, hidden 256",
            lambda nn, fixed, x, *weights: nn.lstm(x, list(weights))[0],
            _lstm,
            {"steps": 128, "batch": 32, "hidden": 256},
            {"steps": 4, "batch": 2, "hidden": 4},
            1.0,
            lambda s: 3 * 2.0 * s["steps"] * s["batch"] * 8 * s["hidden"] ** 2,
        ),
        Layer(
            "attention",
            "scaled_dot_product_attention",
            "attention, 8 heads, 1024, d 64",
            lambda nn, fixed, q, k, v: nn.scaled_dot_product_attention(q, k, v),
            _heads,
            {"heads": 8, "length": 1024, "width": 64},
            {"heads": 2, "length": 8, "width": 4},
            1.0,
            lambda s: 7 * 2.0 * s["heads"] * s["length"] ** 2 * s["width"],
        ),
    )
}


def _first_order(layer: Layer) -> Workload:
    def inputs(rng: np.random.Generator, s: Sizes) -> tuple:
        arrays = layer.arrays(rng, s)
        shape = arrays[0].shape if layer.result is None else layer.result(s)
        return _normal(rng, *shape), arrays, layer.fixed(rng, s)

    title = f"{layer.title}, value and gradient"
    return Workload(
        PREFIX + layer.name, title, inputs, layer.sizes, layer.quick, layer.bar, layer.flops
    )


def _second_order(layer: Layer) -> Workload:
    """The product of a direction with the Hessian of half the sum of squares of the outputs."""

    def inputs(rng: np.random.Generator, s: Sizes) -> tuple:
        arrays = layer.arrays(rng, s)
        return arrays, tuple(_normal(rng, *x.shape) for x in arrays), layer.fixed(rng, s)

    name, title = PREFIX + layer.name + SECOND, f"{layer.title}, second order"
    flops: Callable[[Sizes], float] = lambda s: 2 * layer.flops(s)  # noqa: E731
    return Workload(name, title, inputs, layer.sizes, layer.quick, 0.8, flops)


NN_WORKLOADS = {
    w.name: w for layer in LAYERS.values() for w in (_first_order(layer), _second_order(layer))
}


def layer_of(workload: str) -> tuple[Layer, bool]:
    """The layer of a workload, and whether it is its second derivative."""
    name = workload.removeprefix(PREFIX)
    return LAYERS[name.removesuffix(SECOND)], name.endswith(SECOND)
