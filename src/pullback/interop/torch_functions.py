"""The functions of `pullback.torch`: PyTorch's names and arguments over our gather and scatter."""
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pullback.core.errors import DeviceError, DTypeError, ShapeError
from pullback.interop import torch_cpu, torch_cuda, torch_rows
from pullback.interop.torch_operators import gather as _gather
from pullback.interop.torch_operators import scatter_add as _scatter_add
from pullback.interop.torch_operators import scatter_sum as _scatter_sum
from pullback.interop.torch_plans import ScatterPlan

__all__ = [
    "Embedding",
    "embedding",
    "gather",
    "gather_with_index_add",
    "index",
    "index_add",
    "index_put",
    "index_select",
    "scatter_add",
    "scatter_plan",
    "segment_sum",
]

Index = Tensor | ScatterPlan

DEVICES = ("cpu", "cuda", "meta")
PLANLESS = "Pass the indices themselves here."


# -- arguments -------------------------------------------------------------------------------------


def _checked(name: str, what: str, t: Any) -> Tensor:
    """A tensor that the kernels can take."""
    if not isinstance(t, Tensor):
        raise DTypeError(f"{name}: {what} must be a torch.Tensor, got {type(t).__name__}.")
    if t.layout is not torch.strided:
        raise DTypeError(f"{name}: {what} must be dense, got {t.layout}. Call to_dense() first.")
    if t.dtype not in torch_cpu.DTYPES:
        raise DTypeError(f"{name}: {what} has an unknown dtype, got {t.dtype}. Cast it with to().")
    if t.device.type not in DEVICES:
        raise DeviceError(
            f"{name}: {what} must be on the CPU or on CUDA, got {t.device}. Move it with to()."
        )
    return t


def _checked_indices(name: str, indices: Any, x: Tensor) -> Tensor:
    if isinstance(indices, ScatterPlan):
        raise DTypeError(f"{name}: does not take a plan. {PLANLESS}")
    indices = _checked(name, "indices", indices)
    if indices.is_floating_point() or indices.is_complex() or indices.dtype is torch.bool:
        raise DTypeError(
            f"{name}: indices must be integers, got {indices.dtype}. Cast them with"
            " to(torch.int64)."
        )
    if indices.device != x.device:
        raise DeviceError(
            f"{name}: indices must be where the data is, on {x.device}, got {indices.device}."
        )
    return indices


def _unplanned(name: str, indices: Any, x: Tensor, size: int | None) -> tuple[Tensor, Any]:
    """The indices, and the token of their plan if they came as one for an axis of `size`."""
    if not isinstance(indices, ScatterPlan):
        return _checked_indices(name, indices, x), None
    if size is not None and indices.size != size:
        raise ShapeError(
            f"{name}: the plan is for an axis of size {indices.size}, got one of size {size}."
            " Make a plan for this size."
        )
    return _checked_indices(name, indices.indices, x), indices.token


def _axis(name: str, dim: int, x: Tensor) -> int:
    if not -x.ndim <= dim < x.ndim:
        raise ShapeError(f"{name}: dim must be within {x.ndim} dimensions, got {dim}.")
    return dim % x.ndim


def _same_dtype(name: str, x: Tensor, other: Tensor) -> None:
    if x.dtype != other.dtype:
        raise DTypeError(
            f"{name}: what is added must have the dtype {x.dtype}, got {other.dtype}. Cast one"
            " with to()."
        )
    if x.device != other.device:
        raise DeviceError(f"{name}: what is added must be on {x.device}, got {other.device}.")


def _aligned(indices: Tensor, rest: int) -> Tensor:
    """Indices that broadcast over `rest` more axes."""
    return indices[(..., *[None] * rest)] if rest else indices


def _to_place(t: Tensor, count: int, dim: int) -> Tensor:
    """Move the first `count` axes to where `dim` others come before them."""
    if dim == 0 or count == 0:
        return t
    return t.movedim(tuple(range(count)), tuple(range(dim, dim + count)))


def _to_front(t: Tensor, count: int, dim: int) -> Tensor:
    if dim == 0 or count == 0:
        return t
    return t.movedim(tuple(range(dim, dim + count)), tuple(range(count)))


# -- one index for whole rows ----------------------------------------------------------------------


def _rows(name: str, x: Tensor, indices: Any, dim: int, padding: Any = None) -> Tensor:
    if dim == 0 and (found := torch_rows.rows(x, indices, padding, name)) is not None:
        return found
    x = _checked(name, "the data", x)
    dim = _axis(name, dim, x)
    places, token = _unplanned(name, indices, x, x.shape[dim])
    aligned = _aligned(places, x.ndim - 1)
    out = _gather(_to_front(x, 1, dim), [aligned], padding, token, name)
    return _to_place(out, places.ndim, dim)


def gather_with_index_add(buffer: Tensor, indices: Index, dim: int = 0) -> Tensor:
    """`buffer[indices]` (here along `dim`), with a gradient that has the same bits on every run.

    >>> import torch
    >>> scales = torch.tensor([1.0, 2.0], requires_grad=True)
    >>> gather_with_index_add(scales, torch.tensor([0, 1, 1])).sum().backward()
    >>> scales.grad
    tensor([1., 2.])

    `indices` has any shape, and may be a plan. Negative ones count from the end.
    """
    return _rows("gather_with_index_add", buffer, indices, dim)


def index_select(x: Tensor, dim: int, index: Index) -> Tensor:
    """`torch.index_select`: the slices of `x` along `dim` at a 1-D `index`, or a plan of one.

    >>> import torch
    >>> index_select(torch.tensor([[1, 2], [3, 4]]), 1, torch.tensor([1, 0]))
    tensor([[2, 1],
            [4, 3]])
    """
    places = index.indices if isinstance(index, ScatterPlan) else index
    if not isinstance(places, Tensor) or places.ndim > 1:
        raise ShapeError(
            f"index_select: index must be a tensor with one dimension, got {index}."
            " gather_with_index_add takes any number."
        )
    return _rows("index_select", x, index if places.ndim else places[None], dim)


def embedding(indices: Index, weight: Tensor, padding_idx: int | None = None) -> Tensor:
    """`torch.nn.functional.embedding`: rows of `weight`; row `padding_idx` gets no gradient.

    >>> import torch
    >>> embedding(torch.tensor([[1, 0]]), torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    tensor([[[3., 4.],
             [1., 2.]]])
    """
    if padding_idx is None:
        found = torch_rows.rows(weight, indices, None, "embedding")
        if found is not None:
            return found
    weight = _checked("embedding", "the weight", weight)
    if weight.ndim != 2:
        raise ShapeError(f"embedding: weight must have two dimensions, got {weight.ndim}.")
    if padding_idx is None:
        return _rows("embedding", weight, indices, 0)
    rows = weight.shape[0]
    if not -rows <= padding_idx < rows:
        raise ShapeError(f"embedding: padding_idx must be within {rows} rows, got {padding_idx}.")
    return _rows("embedding", weight, indices, 0, (0, padding_idx % rows))


class Embedding(torch.nn.Embedding):
    """`torch.nn.Embedding` with a gradient that has the same bits on every run.

    >>> import torch
    >>> Embedding(10, 3)(torch.tensor([[1, 2, 4]])).shape
    torch.Size([1, 3, 3])
    """

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        for name in ("max_norm", "scale_grad_by_freq", "sparse"):
            if getattr(self, name):
                raise DTypeError(
                    f"Embedding: does not support {name}, got {getattr(self, name)}. Use"
                    " torch.nn.Embedding for it."
                )

    def forward(self, input: Index) -> Tensor:
        """The rows of the table at the given positions, or at those of a plan."""
        return embedding(input, self.weight, self.padding_idx)


def index_add(
    x: Tensor, dim: int, index: Index, source: Tensor, *, alpha: float | complex = 1
) -> Tensor:
    """`torch.index_add`: a copy of `x` with `alpha * source` added at `index` along `dim`.

    >>> import torch
    >>> index_add(torch.ones(3), 0, torch.tensor([1, 1]), torch.tensor([2.0, 3.0]))
    tensor([1., 6., 1.])
    """
    name = "index_add"
    x, source = _checked(name, "the data", x), _checked(name, "source", source)
    dim = _axis(name, dim, x)
    places, token = _unplanned(name, index, x, x.shape[dim])
    places = places[None] if places.ndim == 0 else places
    _same_dtype(name, x, source)
    shape = (*x.shape[:dim], *places.shape, *x.shape[dim + 1 :])
    if tuple(source.shape) != shape:
        raise ShapeError(f"{name}: source must have shape {shape}, got {tuple(source.shape)}.")
    if alpha != 1:
        source = source * alpha
    aligned = _aligned(places, x.ndim - 1)
    updates = _to_front(source, places.ndim, dim)
    out = _scatter_add(_to_front(x, 1, dim), updates, [aligned], token, name)
    return _to_place(out, 1, dim)


def segment_sum(x: Tensor, segment_ids: Index, num_segments: int | None = None) -> Tensor:
    """The sums of the rows of `x` by segment: `out[s]` adds the rows with `segment_ids == s`.

    >>> import torch
    >>> segment_sum(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([1, 1, 0]), 3)
    tensor([4., 3., 0.])

    `segment_ids` has the shape of the first axes of `x`. With a plan, the number of segments is
    the plan's.
    """
    name = "segment_sum"
    x = _checked(name, "the data", x)
    if num_segments is None:
        if not isinstance(segment_ids, ScatterPlan):
            raise DTypeError(f"{name}: num_segments is missing. Only a plan knows it by itself.")
        num_segments = segment_ids.size
    ids, token = _unplanned(name, segment_ids, x, num_segments)
    if x.shape[: ids.ndim] != ids.shape:
        raise ShapeError(
            f"{name}: every row needs one segment, got segment_ids of shape {tuple(ids.shape)} for"
            f" data of shape {tuple(x.shape)}."
        )
    rest = x.shape[ids.ndim :]
    return _scatter_sum(x, [_aligned(ids, len(rest))], (num_segments, *rest), token, name)


# -- an index for each element ---------------------------------------------------------------------


def _along(name: str, x: Tensor, dim: int, index: Any) -> tuple[Tensor, int]:
    """The index, which has a place for each element of the result, and the axis."""
    x = _checked(name, "the data", x)
    index = _checked_indices(name, index, x)
    if index.ndim != x.ndim or x.ndim == 0:
        raise ShapeError(
            f"{name}: index must have as many dimensions as the data, {x.ndim}, and at least one,"
            f" got {index.ndim}."
        )
    dim = _axis(name, dim, x)
    if any(n > m for d, (n, m) in enumerate(zip(index.shape, x.shape, strict=True)) if d != dim):
        raise ShapeError(
            f"{name}: index reaches over the data beside dimension {dim}, got index"
            f" {tuple(index.shape)} and data of shape {tuple(x.shape)}."
        )
    return index, dim


def gather(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """`torch.gather`: `out[i, j] = x[i, index[i, j]]` (here along dimension 1).

    >>> import torch
    >>> gather(torch.tensor([[1, 2], [3, 4]]), 1, torch.tensor([[0, 0], [1, 0]]))
    tensor([[1, 1],
            [4, 3]])
    """
    index, dim = _along("gather", x, dim, index)
    for d, n in enumerate(index.shape):
        if d != dim and n < x.shape[d]:
            x = x.narrow(d, 0, n)
    out = _gather(_to_front(x, 1, dim), [_to_front(index, 1, dim)], None, None, "gather")
    return _to_place(out, 1, dim)


def scatter_add(x: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """`torch.scatter_add`: a copy of `x` with `src[i, j]` added at `[i, index[i, j]]` (for dim 1).

    >>> import torch
    >>> ones = torch.ones(1, 3)
    >>> scatter_add(torch.zeros(1, 3), 1, torch.tensor([[0, 2, 2]]), ones)
    tensor([[1., 0., 2.]])
    """
    name = "scatter_add"
    index, dim = _along(name, x, dim, index)
    src = _checked(name, "src", src)
    _same_dtype(name, x, src)
    if src.ndim != x.ndim or any(n > m for n, m in zip(index.shape, src.shape, strict=True)):
        raise ShapeError(
            f"{name}: index must not reach over src, got index {tuple(index.shape)} and src"
            f" {tuple(src.shape)}."
        )
    front, places = _to_front(x, 1, dim), _to_front(index, 1, dim)
    updates = _to_front(src[tuple(slice(n) for n in index.shape)], 1, dim)
    arrays = [places]
    if places.shape[1:] != front.shape[1:]:  # it covers a part: the other axes are indexed too
        for d in range(1, x.ndim):
            along = torch.arange(places.shape[d], device=x.device)
            arrays.append(along.reshape([-1 if e == d else 1 for e in range(x.ndim)]))
    return _to_place(_scatter_add(front, updates, arrays, None, name), 1, dim)


# -- several index arrays --------------------------------------------------------------------------


class _IndexPlaces:
    """What `x[indices]` selects: indices in front, and where their axes go in the result."""

    def __init__(self, name: str, x: Tensor, indices: Sequence[Tensor | None]):
        x = _checked(name, "the data", x)
        spread = _without_masks(name, x, indices)
        self.dims = [d for d, i in enumerate(spread) if i is not None]
        if not self.dims or len(spread) > x.ndim:
            raise ShapeError(
                f"{name}: takes 1 to {x.ndim} index tensors for data of shape {tuple(x.shape)},"
                f" got {len(self.dims)} over {len(spread)} dimensions."
            )
        arrays = [_checked_indices(name, i, x) for i in spread if i is not None]
        for i in arrays:
            if i.dtype is torch.uint8:
                raise DTypeError(f"{name}: uint8 stood for a mask once. Cast with to().")
        shape = torch.broadcast_shapes(*[i.shape for i in arrays])
        rest = [d for d in range(x.ndim) if d not in self.dims]
        self.order = (*self.dims, *rest)
        self.front = x.permute(self.order)
        self.count = len(shape)
        together = self.dims[-1] - self.dims[0] + 1 == len(self.dims)
        self.start = self.dims[0] if together else 0
        padded = [i.reshape(*[1] * (len(shape) - i.ndim), *i.shape) for i in arrays]
        self.indices = [_aligned(i, len(rest)) for i in padded]
        rows = [x.shape[d] for d in rest]
        self.shape = (*rows[: self.start], *shape, *rows[self.start :])

    def restored(self, front: Tensor) -> Tensor:
        """An array like `front` with its axes as they were in the data."""
        inverse = sorted(range(len(self.order)), key=self.order.__getitem__)
        return front.permute(inverse)


def _without_masks(name: str, x: Tensor, indices: Sequence[Tensor | None]) -> list[Tensor | None]:
    """The indices with each mask replaced by the positions where it is true."""
    if isinstance(indices, (Tensor, ScatterPlan)):
        raise DTypeError(f"{name}: indices must be a tuple of tensors, got one. Write (indices,).")
    spread: list[Tensor | None] = []
    for i in indices:
        if i is None or getattr(i, "dtype", None) is not torch.bool:
            spread.append(i)
            continue
        covered = x.shape[len(spread) : len(spread) + i.ndim]
        if covered != i.shape:
            raise ShapeError(
                f"{name}: a mask must have the shape of the axes it stands for, {tuple(covered)},"
                f" got {tuple(i.shape)}."
            )
        spread += i.nonzero(as_tuple=True)
    return spread


def index(x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    """`x[indices]` for a tuple of index tensors; None stands for a whole axis.

    >>> import torch
    >>> index(torch.tensor([[1, 2], [3, 4]]), (torch.tensor([0, 1]), torch.tensor([1, 1])))
    tensor([2, 4])
    """
    places = _IndexPlaces("index", x, indices)
    out = _gather(places.front, places.indices, None, None, "index")
    return _to_place(out, places.count, places.start)


def index_put(
    x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False
) -> Tensor:
    """`torch.index_put` with `accumulate=True`: a copy of `x` with `values` added at `indices`.

    >>> import torch
    >>> places = (torch.tensor([1, 1]),)
    >>> index_put(torch.zeros(3), places, torch.tensor([2.0, 3.0]), accumulate=True)
    tensor([0., 5., 0.])
    """
    name = "index_put"
    if not accumulate:
        raise DTypeError(f"{name}: only accumulates, got accumulate=False. Use torch.index_put.")
    places = _IndexPlaces(name, x, indices)
    values = _checked(name, "values", values)
    _same_dtype(name, x, values)
    try:
        values = values.expand(places.shape)
    except RuntimeError:
        raise ShapeError(
            f"{name}: values must broadcast to {places.shape}, got {tuple(values.shape)}."
        ) from None
    updates = _to_front(values, places.count, places.start)
    return places.restored(_scatter_add(places.front, updates, places.indices, None, name))


# -- plans -----------------------------------------------------------------------------------------


def scatter_plan(indices: Tensor, size: int) -> ScatterPlan:
    """Indices into an axis of `size` elements, arranged once for many calls.

    >>> import torch
    >>> plan = scatter_plan(torch.tensor([1, 1, 0]), 3)
    >>> segment_sum(torch.tensor([1.0, 2.0, 4.0]), plan)
    tensor([4., 3., 0.])
    """
    indices = _checked_indices("scatter_plan", indices, indices).detach().clone()
    make = torch_cuda.make_plan if indices.is_cuda else torch_cpu.make_plan
    return ScatterPlan(indices, size, make(indices, size))
