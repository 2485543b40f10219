"""Print a table of derivatives that PyTorch does not have, with its words, beside ours.

Each row takes a derivative along a random direction. PyTorch's is taken in float32, on a GPU where
there is one; ours in float64, and compared with finite differences of the derivative before it.
Needs torch (and torchvision for deform_conv2d).
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

import pullback as pb
import pullback.nn

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WIDTH = 110  # of PyTorch's words
STEP = 2e-3
F: Any = torch.nn.functional


class Row(NamedTuple):
    """One derivative: both functions take arrays of these shapes and return one array."""

    name: str
    order: int
    theirs: Callable[..., Any]
    ours: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    part: str = ""  # the function of pb.nn that it needs, where that is not the name
    inside: int = -1  # the array of offsets that must stay between whole numbers, where kinks are


# -- the rows --------------------------------------------------------------------------------------


def tensor(values: Any) -> Any:
    return torch.tensor(values, device=DEVICE)


def deformed(*arrays: Any) -> Any:
    from torchvision.ops import deform_conv2d  # pyright: ignore[reportMissingImports]

    return deform_conv2d(*arrays)


def recurrent(name: str) -> Row:
    gates, hidden, size = {"lstm": 4, "gru": 3}[name], 3, 2
    shapes = (
        (gates * hidden, size),
        (gates * hidden, hidden),
        (gates * hidden,),
        (gates * hidden,),
    )

    def theirs(x: Any, *weights: Any) -> Any:
        zero = torch.zeros(1, x.shape[1], hidden, device=DEVICE)
        state = (zero, zero) if name == "lstm" else zero
        layer = getattr(torch, name)
        return layer(x, state, list(weights), True, 1, 0.0, True, False, False)[0]

    def ours(x: Any, *weights: Any) -> Any:
        return getattr(pb.nn, name)(x, list(weights))[0]

    return Row(name, 2, theirs, ours, ((4, 2, size), *shapes))


LABELS, LISTED, TARGETS = [2, 0, 1], [[2, -1, 0], [0, 1, -1], [1, -1, -1]], [[1, 2], [1, 1]]
BAGS, OFFSETS = [1, 0, 3, 3, 2, 1], [0, 2, 5]


def rows() -> Iterator[Row]:
    yield Row(
        "scaled_dot_product_attention", 2,
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v),
        lambda q, k, v: pb.nn.scaled_dot_product_attention(q, k, v), ((1, 2, 5, 8),) * 3,
    )  # fmt: skip
    yield Row(
        "scaled_dot_product_attention (causal)", 2,
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        lambda q, k, v: pb.nn.scaled_dot_product_attention(q, k, v, is_causal=True),
        ((1, 2, 5, 8),) * 3, "scaled_dot_product_attention",
    )  # fmt: skip
    yield recurrent("lstm")
    yield recurrent("gru")
    yield Row(
        "deform_conv2d", 2, deformed, lambda *arrays: pb.nn.deform_conv2d(*arrays),
        ((1, 2, 4, 4), (1, 8, 3, 3), (2, 2, 2, 2)), inside=1,
    )  # fmt: skip
    yield Row(
        "ctc_loss", 2,
        lambda x: F.ctc_loss(F.log_softmax(x, 2), tensor(TARGETS), tensor([4, 4]), tensor([2, 2])),
        lambda x: pb.nn.ctc_loss(pb.nn.log_softmax(x, 2), pb.tensor(TARGETS), [4, 4], [2, 2]),
        ((4, 2, 3),),
    )  # fmt: skip
    for p in (2.0, 1.5):
        yield Row(
            f"cdist (p = {p:g})", 2, lambda x, y, p=p: torch.cdist(x, y, p),
            lambda x, y, p=p: pb.nn.cdist(x, y, p), ((3, 4), (2, 4)), "cdist",
        )  # fmt: skip
    yield Row("pdist", 2, F.pdist, lambda x: pb.nn.pdist(x), ((4, 3),))
    for mode in ("sum", "mean", "max"):
        yield Row(
            f"embedding_bag ({mode})", 2,
            lambda w, m=mode: F.embedding_bag(tensor(BAGS), w, tensor(OFFSETS), mode=m) ** 2,
            lambda w, m=mode: pb.square(
                pb.nn.embedding_bag(pb.tensor(BAGS), w, pb.tensor(OFFSETS), mode=m)
            ),
            ((4, 3),), "embedding_bag",
        )  # fmt: skip
    yield Row("hardsigmoid", 2, lambda x: F.hardsigmoid(x * x), lambda x: pb.nn.hardsigmoid(x * x),
              ((5,),))  # fmt: skip
    yield Row(
        "multi_margin_loss", 2,
        lambda x: F.multi_margin_loss(x * x, tensor(LABELS), p=2),
        lambda x: pb.nn.multi_margin_loss(x * x, pb.tensor(LABELS), p=2), ((3, 3),),
    )  # fmt: skip
    yield Row(
        "multilabel_margin_loss", 2,
        lambda x: F.multilabel_margin_loss(x * x, tensor(LISTED)),
        lambda x: pb.nn.multilabel_margin_loss(x * x, pb.tensor(LISTED)), ((3, 3),),
    )  # fmt: skip
    for n in (1, 2, 3):
        name = f"conv_transpose{n}d"
        options = {"stride": 2, "padding": 1, "output_padding": 1}
        yield Row(
            f"{name} (output_padding=1)", 3,
            lambda x, w, name=name, options=options: getattr(F, name)(x, w, **options),
            lambda x, w, name=name, options=options: getattr(pb.nn, name)(x, w, **options),
            ((1, 2, *(3,) * n), (2, 3, *(3,) * n)), name,
        )  # fmt: skip


# -- derivatives along a line ----------------------------------------------------------------------


def lines(row: Row) -> list[list[np.ndarray]]:
    """A point and a direction for each array."""
    rng = np.random.default_rng(5)
    points, directions = ([rng.normal(size=s) for s in row.shapes] for _ in range(2))
    if row.inside >= 0:
        points[row.inside] = rng.uniform(0.2, 0.8, row.shapes[row.inside])
    return [points, directions]


def of_torch(row: Row) -> float:
    """PyTorch's derivative of the sum of squares along the line."""
    points, directions = (
        [torch.tensor(a, dtype=torch.float32, device=DEVICE) for a in arrays]
        for arrays in lines(row)
    )
    t = torch.zeros((), device=DEVICE, requires_grad=True)
    y = row.theirs(*[x + t * v for x, v in zip(points, directions, strict=True)])
    y = (y * y).sum()
    for _ in range(row.order):
        (y,) = torch.autograd.grad(y, t, create_graph=True)
    return float(y)


def of_ours(row: Row) -> tuple[float, float]:
    """Our derivative along the line, and finite differences of the one before it."""
    points, directions = ([pb.tensor(a) for a in arrays] for arrays in lines(row))

    def before(t: Any) -> Any:
        y = row.ours(*[x + t * v for x, v in zip(points, directions, strict=True)])
        return (y * y).sum()

    for _ in range(row.order - 1):
        before = pb.grad(before)

    def at(t: float) -> float:
        return before(pb.tensor(t, dtype="float64")).item()

    exact = pb.grad(before)(pb.tensor(0.0, dtype="float64")).item()
    weights = {1: 45.0, 2: -9.0, 3: 1.0}
    steps = [c * (at(n * STEP) - at(-n * STEP)) for n, c in weights.items()]
    return exact, sum(steps) / (60.0 * STEP)


def words(row: Row, ours: float) -> str:
    """What PyTorch says: its error, shortened, or how its number compares."""
    try:
        found = of_torch(row)
    except ModuleNotFoundError as error:
        return f"({error.name} is not installed here)"
    except (RuntimeError, NotImplementedError) as error:
        text = re.sub(r"\s+", " ", str(error)).replace("|", "/").strip()
        return text if len(text) <= WIDTH else text[: WIDTH - 3].rstrip() + "..."
    scale = max(abs(ours), 1.0)
    same = "the same" if abs(found - ours) <= 1e-3 * scale else f"{found:.6g}, not {ours:.6g}"
    return f"(works here: {same})"


def main() -> int:
    where = torch.cuda.get_device_name() if DEVICE == "cuda" else "the CPU"
    print(f"PyTorch {torch.__version__} on {where}.\n")
    print("| operation | order | PyTorch says | Pullback: error against finite differences |")
    print("|---|---|---|---|")
    wrong = 0
    for row in rows():
        if not hasattr(pb.nn, row.part or row.name):
            continue
        exact, differences = of_ours(row)
        error = abs(exact - differences) / max(abs(exact), 1.0)
        wrong += error > 1e-6
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            said = words(row, exact)
        print(f"| {row.name} | {row.order} | {said} | {error:.1e} |", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
