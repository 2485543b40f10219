"""The functions of `pullback.torch` and PyTorch's own, on the same arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch  # pyright: ignore[reportMissingImports]

import pullback.torch as pbt

Tensor = Any  # of torch, which may not be there when types are checked


class Case(NamedTuple):
    """Functions of the differentiable tensors, with indices inside; the shapes of the tensors."""

    name: str
    ours: Callable[..., Tensor]
    theirs: Callable[..., Tensor]
    shapes: tuple[tuple[int, ...], ...]


I5 = torch.tensor([1, 1, 4, -5, 1])  # into five rows, with duplicates and a negative one
P5 = torch.tensor([1, 1, 4, 0, 1])  # the same rows, for functions of PyTorch that take no negative
I23 = torch.tensor([[2, 0, 2], [-1, 3, 3]])
ALONG = torch.tensor([[2, 0, 2], [1, 1, 1]])
LEFT, RIGHT = torch.tensor([[0], [2]]), torch.tensor([1, 1, 3])
MASK = torch.tensor([True, False, True])


def _put(x: Tensor, indices: tuple, values: Tensor) -> Tensor:
    return pbt.index_put(x, indices, values, accumulate=True)


def _their_put(x: Tensor, indices: tuple, values: Tensor) -> Tensor:
    return torch.index_put(x, indices, values, accumulate=True)


def _their_segments(x: Tensor, ids: Tensor, count: int) -> Tensor:
    rows = x.reshape(ids.numel(), *x.shape[ids.ndim :])
    return torch.zeros(count, *rows.shape[1:], dtype=x.dtype).index_add(0, ids.reshape(-1), rows)


CASES = [
    Case("buffer", lambda x: pbt.gather_with_index_add(x, I5), lambda x: x[I5], ((5,),)),
    Case("rows", lambda x: pbt.gather_with_index_add(x, I5), lambda x: x[I5], ((5, 3),)),
    Case("2-d", lambda x: pbt.gather_with_index_add(x, I23), lambda x: x[I23], ((4, 2),)),
    Case("0-d", lambda x: pbt.gather_with_index_add(x, I5[3]), lambda x: x[I5[3]], ((5, 2),)),
    Case(
        "inner axis",
        lambda x: pbt.gather_with_index_add(x, I23, 1),
        lambda x: x[:, I23],
        ((2, 4, 3),),
    ),
    Case(
        "index_select",
        lambda x: pbt.index_select(x, -1, I5),
        lambda x: torch.index_select(x, -1, P5),
        ((2, 3, 5),),
    ),
    Case(
        "index_select by one",
        lambda x: pbt.index_select(x, 0, I5[0]),
        lambda x: torch.index_select(x, 0, I5[0]),
        ((3, 2),),
    ),
    Case(
        "embedding",
        lambda w: pbt.embedding(I23.abs(), w),
        lambda w: torch.nn.functional.embedding(I23.abs(), w),
        ((4, 3),),
    ),
    Case(
        "index_add",
        lambda x, u: pbt.index_add(x, 0, I5, u, alpha=-2),
        lambda x, u: torch.index_add(x, 0, P5, u, alpha=-2),
        ((5, 2), (5, 2)),
    ),
    Case(
        "index_add inside",
        lambda x, u: pbt.index_add(x, 1, I5, u),
        lambda x, u: torch.index_add(x, 1, P5, u),
        ((2, 5, 2), (2, 5, 2)),
    ),
    Case(
        "scatter_add",
        lambda x, u: pbt.scatter_add(x, 1, ALONG, u),
        lambda x, u: torch.scatter_add(x, 1, ALONG, u),
        ((2, 4), (2, 3)),
    ),
    Case(
        "scatter_add in a corner",
        lambda x, u: pbt.scatter_add(x, 0, ALONG, u),
        lambda x, u: torch.scatter_add(x, 0, ALONG, u),
        ((4, 5), (2, 3)),
    ),
    Case(
        "gather",
        lambda x: pbt.gather(x, 0, ALONG),
        lambda x: torch.gather(x, 0, ALONG),
        ((3, 4),),
    ),
    Case(
        "segment_sum",
        lambda x: pbt.segment_sum(x, P5, 6),
        lambda x: _their_segments(x, P5, 6),
        ((5, 2),),
    ),
    Case(
        "segment_sum, 2-d",
        lambda x: pbt.segment_sum(x, I23.abs(), 4),
        lambda x: _their_segments(x, I23.abs(), 4),
        ((2, 3, 2),),
    ),
    Case(
        "index",
        lambda x: pbt.index(x, (LEFT, RIGHT)),
        lambda x: x[LEFT, RIGHT],
        ((3, 4, 2),),
    ),
    Case(
        "index, apart",
        lambda x: pbt.index(x, (RIGHT[:2], None, RIGHT[:2])),
        lambda x: x[RIGHT[:2], :, RIGHT[:2]],
        ((3, 4, 2),),
    ),
    Case(
        "index, inner axes",
        lambda x: pbt.index(x, (None, LEFT, RIGHT)),
        lambda x: x[:, LEFT, RIGHT],
        ((2, 3, 4),),
    ),
    Case("index by mask", lambda x: pbt.index(x, (MASK,)), lambda x: x[MASK], ((3, 2),)),
    Case(
        "index_put",
        lambda x, v: _put(x, (LEFT, RIGHT), v),
        lambda x, v: _their_put(x, (LEFT, RIGHT), v),
        ((3, 4, 2), (3, 1)),
    ),
    Case(
        "index_put, inner axis",
        lambda x, v: _put(x, (None, I23), v),
        lambda x, v: _their_put(x, (torch.arange(2)[:, None, None], I23), v),
        ((2, 4, 2), (2, 2, 3, 2)),
    ),
]
NAMES = [c.name for c in CASES]


def tensors(case: Case, dtype: Any = torch.float64, grad: bool = False) -> list[Tensor]:
    """The arguments of a case, the same every time."""
    generator = torch.Generator().manual_seed(7)
    drawn = []
    for shape in case.shapes:
        if dtype.is_floating_point or dtype.is_complex:
            wide = torch.complex128 if dtype.is_complex else torch.float64
            t = torch.randn(shape, generator=generator, dtype=wide).to(dtype)
        else:
            t = torch.randint(0, 5, shape, generator=generator).to(dtype)
        drawn.append(t.requires_grad_() if grad else t)
    return drawn
