"""Print, as JSON, what PyTorch says when it is asked for derivatives that it does not have.

Each row is a derivative along a random direction, in float32 unless it says otherwise, on a GPU
where there is one. Needs torch alone (and torchvision for deform_conv2d), so that it runs on any
machine; tools/gaps.py puts the answers beside our derivatives.
"""

from __future__ import annotations

import json
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch

WIDTH = 110  # of PyTorch's words
LABELS, LISTED, TARGETS = [2, 0, 1], [[2, -1, 0], [0, 1, -1], [1, -1, -1]], [[1, 2], [1, 1]]
BAGS, OFFSETS = [1, 0, 3, 3, 2, 1], [0, 2, 5]


class Row(NamedTuple):
    """One derivative: `call(nn, *arrays)`, in the words of torch.nn.functional, is an array."""

    name: str
    order: int
    call: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    dtype: str = "float32"  # of PyTorch
    inside: int = -1  # the array of offsets that must stay between whole numbers, where kinks are


# -- the rows --------------------------------------------------------------------------------------


def rows() -> Iterator[Row]:
    yield from attention()
    for name, gates in {"lstm": 4, "gru": 3}.items():
        weights = ((gates * 3, 2), (gates * 3, 3), (gates * 3,), (gates * 3,))
        call = lambda nn, x, *w, name=name: getattr(nn, name)(x, list(w))[0]  # noqa: E731
        yield Row(name, 2, call, ((4, 2, 2), *weights))
    yield Row(
        "deform_conv2d", 2, lambda nn, *arrays: nn.deform_conv2d(*arrays),
        ((1, 2, 4, 4), (1, 8, 3, 3), (2, 2, 2, 2)), inside=1,
    )  # fmt: skip
    yield from distances()
    for mode in ("sum", "mean", "max"):
        yield Row(
            f"embedding_bag ({mode})", 2,
            lambda nn, w, mode=mode: nn.embedding_bag(
                nn.tensor(BAGS), w, nn.tensor(OFFSETS), mode=mode
            ) ** 2,
            ((4, 3),),
        )  # fmt: skip
    yield Row("hardsigmoid", 2, lambda nn, x: nn.hardsigmoid(x * x), ((5,),))
    yield from losses()
    for n in (1, 2, 3):
        yield Row(
            f"conv_transpose{n}d (output_padding=1)", 3,
            lambda nn, x, w, n=n: getattr(nn, f"conv_transpose{n}d")(
                x, w, stride=2, padding=1, output_padding=1
            ),
            ((1, 2, *(3,) * n), (2, 3, *(3,) * n)),
        )  # fmt: skip


def attention() -> Iterator[Row]:
    """Each dtype has its own fused kernel on a GPU."""
    for dtype in ("float32", "float16"):
        for causal in (False, True):
            words = f"{dtype}, causal" if causal else dtype
            yield Row(
                f"scaled_dot_product_attention ({words})", 2,
                lambda nn, *qkv, causal=causal: nn.scaled_dot_product_attention(
                    *qkv, is_causal=causal
                ),
                ((1, 2, 5, 8),) * 3, dtype,
            )  # fmt: skip


def distances() -> Iterator[Row]:
    for p in (2.0, 1.5):
        yield Row(
            f"cdist (p = {p:g})", 2, lambda nn, x, y, p=p: nn.cdist(x, y, p), ((3, 4), (2, 4))
        )
    yield Row("pdist", 2, lambda nn, x: nn.pdist(x), ((4, 3),))


def losses() -> Iterator[Row]:
    yield Row(
        "ctc_loss", 2,
        lambda nn, x: nn.ctc_loss(
            nn.log_softmax(x, 2), nn.tensor(TARGETS), nn.tensor([4, 4]), nn.tensor([2, 2])
        ),
        ((4, 2, 3),),
    )  # fmt: skip
    yield Row(
        "multi_margin_loss", 2,
        lambda nn, x: nn.multi_margin_loss(x * x, nn.tensor(LABELS), p=2), ((3, 3),),
    )  # fmt: skip
    yield Row(
        "multilabel_margin_loss", 2,
        lambda nn, x: nn.multilabel_margin_loss(x * x, nn.tensor(LISTED)), ((3, 3),),
    )  # fmt: skip


def lines(row: Row) -> list[list[np.ndarray]]:
    """A point and a direction for each array."""
    rng = np.random.default_rng(5)
    points, directions = ([rng.normal(size=s) for s in row.shapes] for _ in range(2))
    if row.inside >= 0:
        points[row.inside] = rng.uniform(0.2, 0.8, row.shapes[row.inside])
    return [points, directions]


# -- PyTorch ---------------------------------------------------------------------------------------


def functions(device: str) -> Any:
    """PyTorch's functions under the names that rows use."""

    def recurrent(name: str) -> Callable[..., Any]:
        def layer(x: Any, weights: list[Any]) -> Any:
            zero = x.new_zeros(1, x.shape[1], weights[1].shape[1])
            state = (zero, zero) if name == "lstm" else zero
            return getattr(torch, name)(x, state, weights, True, 1, 0.0, True, False, False)

        return layer

    def deform_conv2d(*arrays: Any) -> Any:
        from torchvision.ops import deform_conv2d  # pyright: ignore[reportMissingImports]

        return deform_conv2d(*arrays)

    found = {
        **vars(torch.nn.functional),
        "cdist": torch.cdist,
        "deform_conv2d": deform_conv2d,
        "tensor": lambda values: torch.tensor(values, device=device),
        **{name: recurrent(name) for name in ("lstm", "gru")},
    }
    return SimpleNamespace(**found)


def derivative(row: Row, device: str) -> float:
    """PyTorch's derivative of the sum of squares along the line."""
    options: Any = {"dtype": getattr(torch, row.dtype), "device": device}
    points, directions = ([torch.tensor(a, **options) for a in arrays] for arrays in lines(row))
    t = torch.zeros((), requires_grad=True, **options)
    y = row.call(functions(device), *[x + t * v for x, v in zip(points, directions, strict=True)])
    y = (y * y).sum()
    for _ in range(row.order):
        (y,) = torch.autograd.grad(y, t, create_graph=True)
    return float(y)


def answer(row: Row, device: str) -> float | str:
    """PyTorch's number, or the words of its error, shortened."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return derivative(row, device)
    except ModuleNotFoundError as error:
        return f"({error.name} is not installed here)"
    except (RuntimeError, NotImplementedError) as error:
        text = re.sub(r"\s+", " ", str(error)).replace("|", "/").strip()
        return text if len(text) <= WIDTH else text[: WIDTH - 3].rstrip() + "..."


def answers() -> dict[str, Any]:
    """What PyTorch says of all rows, and which PyTorch it is, and where."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    where = torch.cuda.get_device_name() if device == "cuda" else "the CPU"
    said = {row.name: answer(row, device) for row in rows()}
    return {"torch": torch.__version__, "where": where, "said": said}


if __name__ == "__main__":
    json.dump(answers(), sys.stdout, indent=1)
    print()
