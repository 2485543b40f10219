"""Convolution and its relatives against torch.nn.functional: values, first and second derivatives,
every option, both layouts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pullback as pb

torch = pytest.importorskip("torch")

from interop.torch_agreement import agree  # noqa: E402

F: Any = torch.nn.functional
DTYPES = ["float64", "float32"]
LAYOUTS = ["channels_first", "channels_last"]


def drawn(dtype: str, *shapes: tuple[int, ...]) -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    return [rng.standard_normal(s).astype(dtype) for s in shapes]


def in_layout(function: Any, layout: str, images: int = 1, flat: bool = False) -> Any:
    """Our function on arrays with channels first, run in a layout."""

    def run(*arrays: Any, **options: Any) -> Any:
        if layout == "channels_first":
            return function(*arrays, **options)
        moved = [pb.moveaxis(a, 1, -1) for a in arrays[:images]]
        out = function(*moved, *arrays[images:], **options, layout=layout)
        return pb.moveaxis(out, -1, 1)

    return run


CONVOLUTIONS: list[tuple[tuple, tuple, dict[str, Any]]] = [
    ((2, 4, 9), (6, 4, 3), {}),
    ((2, 4, 9), (6, 4, 4), {"stride": 2, "padding": 3, "dilation": 2}),
    ((2, 4, 9), (6, 2, 3), {"groups": 2, "padding": "same", "dilation": 2}),
    ((2, 4, 9), (4, 1, 2), {"groups": 4, "padding": "valid"}),
    ((1, 3, 20), (2, 3, 9), {"padding": 4}),
    ((2, 3, 6, 7), (5, 3, 3, 2), {"padding": (1, 0)}),
    ((2, 3, 6, 7), (5, 3, 2, 4), {"stride": (2, 3), "dilation": (3, 1), "padding": (2, 3)}),
    ((2, 6, 5, 5), (9, 2, 3, 3), {"groups": 3, "stride": 2, "padding": 1}),
    ((2, 6, 5, 5), (6, 1, 3, 3), {"groups": 6, "padding": "same"}),
    ((2, 6, 5, 5), (12, 1, 3, 3), {"groups": 6, "stride": 2}),
    ((1, 17, 4, 4), (19, 17, 1, 1), {}),
    ((1, 17, 5, 5), (19, 17, 1, 1), {"stride": 2}),
    ((1, 2, 4, 5, 3), (3, 2, 2, 3, 2), {"padding": 1, "stride": (1, 2, 1)}),
    ((1, 4, 4, 3, 4), (4, 1, 3, 1, 2), {"groups": 4, "dilation": (1, 1, 2)}),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("x", "w", "options"), CONVOLUTIONS)
def test_convolution(x, w, options, layout, dtype):
    name = f"conv{len(x) - 2}d"
    ours, theirs = in_layout(getattr(pb.nn, name), layout), getattr(F, name)
    reached = agree(
        lambda *a: ours(*a, **options),
        lambda *a: theirs(*a, **options),
        drawn(dtype, x, w, (w[0],)),
        loosely=10,
    )
    assert reached == 2


MODES = {"reflect": "reflect", "replicate": "replicate", "circular": "circular"}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("axes", [1, 2])
def test_convolution_with_another_padding(axes, mode):
    pads = (2, 1)[:axes]
    flat = [p for n in reversed(pads) for p in (n, n)]
    name = f"conv{axes}d"
    agree(
        lambda x, w: getattr(pb.nn, name)(x, w, padding=pads, padding_mode=mode),
        lambda x, w: getattr(F, name)(F.pad(x, flat, mode=mode), w),
        drawn("float64", (2, 3, *[5] * axes), (4, 3, *[3] * axes)),
    )


TRANSPOSED: list[tuple[tuple, tuple, dict[str, Any]]] = [
    ((2, 4, 5), (4, 3, 3), {}),
    ((2, 4, 5), (4, 3, 4), {"stride": 3, "padding": 2, "output_padding": 2}),
    ((2, 4, 5), (4, 3, 3), {"groups": 2, "stride": 2, "dilation": 2, "output_padding": 1}),
    ((2, 4, 5), (4, 3, 2), {"dilation": 3, "padding": 1, "output_padding": 2}),
    ((1, 3, 4, 3), (3, 5, 3, 2), {"stride": (2, 1), "padding": (1, 0), "output_padding": (1, 0)}),
    ((1, 4, 3, 3), (4, 1, 3, 3), {"groups": 4, "stride": 2}),
    ((1, 2, 3, 3), (2, 4, 1, 1), {"stride": 3}),
    (
        (1, 2, 2, 3, 2),
        (2, 3, 2, 3, 2),
        {"stride": (1, 2, 3), "padding": 1, "output_padding": (0, 1, 2)},
    ),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("y", "w", "options"), TRANSPOSED)
def test_transposed_convolution(y, w, options, layout, dtype):
    name = f"conv_transpose{len(y) - 2}d"
    ours, theirs = in_layout(getattr(pb.nn, name), layout), getattr(F, name)
    reached = agree(
        lambda *a: ours(*a, **options),
        lambda *a: theirs(*a, **options),
        drawn(dtype, y, w, (w[1] * options.get("groups", 1),)),
        loosely=10,
    )
    assert reached == 2


UNFOLDED = [
    {"kernel_size": 2},
    {"kernel_size": (3, 2), "dilation": (1, 2), "padding": (1, 2), "stride": (2, 1)},
]


@pytest.mark.parametrize("options", UNFOLDED)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_unfold_and_fold(options, layout):
    ours = in_layout(pb.nn.unfold, layout)
    (x,) = drawn("float64", (2, 3, 5, 6))
    agree(lambda x: ours(x, **options), lambda x: F.unfold(x, **options), [x])
    columns = F.unfold(torch.tensor(x), **options).numpy()
    back = in_layout(pb.nn.fold, layout)
    agree(
        lambda y: back(y, (5, 6), **options),
        lambda y: F.fold(y, (5, 6), **options),
        [columns],
    )


def torch_deformed(x, offset, weight, mask, stride, padding, dilation):
    """A deformable convolution made of torch's grid_sample, one kernel position after the other."""
    c, h, w = x.shape[1:]
    ins, kh, kw = weight.shape[1:]
    parts = offset.shape[1] // (2 * kh * kw)
    oh, ow = offset.shape[2:]
    rows = torch.arange(oh, dtype=x.dtype)[:, None] * stride[0] - padding[0]
    columns = torch.arange(ow, dtype=x.dtype)[None] * stride[1] - padding[1]
    groups = c // ins
    total = 0
    for k in range(kh * kw):
        i, j = divmod(k, kw)
        pieces = []
        for g in range(parts):
            at = g * kh * kw + k
            y = rows + i * dilation[0] + offset[:, 2 * at]
            z = columns + j * dilation[1] + offset[:, 2 * at + 1]
            grid = torch.stack([(2 * z + 1) / w - 1, (2 * y + 1) / h - 1], -1)
            own = x[:, g * c // parts : (g + 1) * c // parts]
            piece = F.grid_sample(own, grid, align_corners=False)
            pieces.append(piece * mask[:, at : at + 1])
        total = total + F.conv2d(torch.cat(pieces, 1), weight[:, :, i : i + 1, j : j + 1],
                                 groups=groups)  # fmt: skip
    return total


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("groups", [1, 2])
def test_deformable_convolution(parts, groups):
    options: Any = {"stride": (1, 2), "padding": (1, 1), "dilation": (2, 1)}
    x, weight = drawn("float64", (2, 4, 6, 5), (2, 4 // groups, 2, 3))
    rng = np.random.default_rng(1)
    shape = (2, parts * 6, 6, 3)
    offset = rng.uniform(-1.9, 1.9, (2, parts * 12, 6, 3))
    mask = rng.uniform(0.5, 1.5, shape)
    reached = agree(
        lambda x, o, w, m: pb.nn.deform_conv2d(x, o, w, mask=m, **options),
        lambda x, o, w, m: torch_deformed(x, o, w, m, **options),
        [x, offset, weight, mask],
    )
    assert reached == 2
