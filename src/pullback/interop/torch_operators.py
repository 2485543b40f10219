"""The operators behind `pullback.torch`, known to PyTorch's dispatcher, and their derivatives.

Three operators are closed under differentiation and batching; their form is that of
`pullback.primitive`: `x` has k indexed axes, then the rest, and the index arrays broadcast over
rows and rest.

    gather(x, indices)                 its gradient is scatter_sum
    scatter_sum(updates, indices, s)   adds into zeros of shape s; its gradient is gather
    scatter_add(x, updates, indices)   its gradients are the identity and gather

The operators themselves (`torch.ops.pullback.*`) are kernels. The functions of this module carry
the derivatives, as `torch.autograd.Function`s: an operator's own autograd formula would lose
forward mode in silence.
"""
# The rules of a Function name their arguments, which the base class only counts.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
# pyright: reportIncompatibleMethodOverride=false

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual

from pullback.interop import torch_cpu, torch_cuda

__all__ = ["Padding", "gather", "scatter_add", "scatter_sum", "without_row"]

Padding = tuple[int, int] | None  # axis and position of a row that gets no gradient

_library = torch.library.Library("pullback", "DEF")
_SCHEMAS = (
    "gather(Tensor x, Tensor[] indices, Tensor? plan, str name) -> Tensor",
    "scatter_sum(Tensor updates, Tensor[] indices, SymInt[] shape, Tensor? plan, str name)"
    " -> Tensor",
    "scatter_add(Tensor x, Tensor updates, Tensor[] indices, Tensor? plan, str name) -> Tensor",
)


def _gather_fake(x: Tensor, indices: Sequence[Tensor], plan: Any, name: str) -> Tensor:
    rest = x.shape[len(indices) :]
    whole = torch.broadcast_shapes(*[i.shape for i in indices])
    return x.new_empty((*whole[: len(whole) - len(rest)], *rest))


def _scatter_sum_fake(
    updates: Tensor, indices: Sequence[Tensor], shape: Sequence[Any], plan: Any, name: str
) -> Tensor:
    return updates.new_empty(tuple(shape))


def _scatter_add_fake(
    x: Tensor, updates: Tensor, indices: Sequence[Tensor], plan: Any, name: str
) -> Tensor:
    return x.new_empty(x.shape)


_FAKES = (_gather_fake, _scatter_sum_fake, _scatter_add_fake)

for _schema, _fake in zip(_SCHEMAS, _FAKES, strict=True):
    _name = _schema.partition("(")[0]
    # Kernels look at error words on the host, which a recorded CUDA graph would not.
    _library.define(_schema, tags=(torch.Tag.pt2_compliant_tag, torch.Tag.cudagraph_unsafe))
    _library.impl(_name, getattr(torch_cpu, _name), "CPU")
    _library.impl(_name, getattr(torch_cuda, _name), "CUDA")
    torch.library.register_fake(f"pullback::{_name}", _fake, lib=_library)

_gather_kernel = torch.ops.pullback.gather.default
_scatter_sum_kernel = torch.ops.pullback.scatter_sum.default
_scatter_add_kernel = torch.ops.pullback.scatter_add.default


class _Positional(inspect.Signature):
    """Arguments that come as they are: `Function.apply` asks for a binding on every call, which
    would take longer than a small kernel.
    """

    def bind(self, *args: Any, **kwargs: Any) -> Any:
        return _Bound(args)


class _Bound:
    def __init__(self, args: tuple):
        self.args = args
        self.kwargs: dict[str, Any] = {}

    def apply_defaults(self) -> None:
        """There are none."""


def _quick(forward: Callable[..., Any]) -> Callable[..., Any]:
    forward.__signature__ = _Positional()  # pyright: ignore[reportFunctionMemberAccess]
    return forward


def _last(t: Tensor, dim: int | None, size: int) -> Tensor:
    """The batch as the last axis."""
    return t.movedim(dim, -1) if dim is not None else t.unsqueeze(-1).expand(*t.shape, size)


def _first(t: Tensor, dim: int | None, size: int) -> Tensor:
    """The batch as the first axis."""
    return t.movedim(dim, 0) if dim is not None else t.expand(size, *t.shape)


def _led(indices: Sequence[Tensor], dims: Sequence[int | None]) -> list[Tensor]:
    """Index arrays with one more axis in front: the batch, or one element for all of it."""
    pairs = zip(indices, dims, strict=True)
    return [i.unsqueeze(0) if d is None else i.movedim(d, 0) for i, d in pairs]


def _batch_index(size: int, led: Sequence[Tensor]) -> Tensor:
    """The positions in a batch as one more index array."""
    places = torch.arange(size, device=led[0].device)
    return places.reshape(-1, *[1] * (led[0].ndim - 1))


def _trailed(indices: Sequence[Tensor]) -> list[Tensor]:
    """Index arrays that broadcast over one more axis of the rest."""
    return [i.unsqueeze(-1) for i in indices]


def without_row(t: Tensor, padding: Padding) -> Tensor:
    """A fresh tensor with the row of the padding set to zero, in place where nobody looks back."""
    if padding is None:
        return t
    axis, row = padding
    if torch.is_grad_enabled():
        return torch.select_scatter(t, torch.zeros_like(t.select(axis, row)), axis, row)
    t.select(axis, row).zero_()
    return t


def _keep(ctx: Any, plan: Tensor | None, indices: Sequence[Tensor]) -> None:
    """Saves what both modes of differentiation read."""
    ctx.save_for_backward(plan, *indices)
    ctx.save_for_forward(plan, *indices)


class _Gather(torch.autograd.Function):
    @staticmethod
    @_quick
    def forward(x: Tensor, padding: Padding, plan: Tensor | None, name: str, *indices: Tensor):
        return _gather_kernel(x, list(indices), plan, name)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        x, ctx.padding, plan, ctx.name, *indices = inputs
        ctx.shape = x.shape
        _keep(ctx, plan, indices)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple:
        plan, *indices = ctx.saved_tensors
        grad = None
        if ctx.needs_input_grad[0]:
            grad = scatter_sum(grads[0], indices, tuple(ctx.shape), plan, ctx.name)
            grad = without_row(grad, ctx.padding)
        return grad, *[None] * (3 + len(indices))

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *others: Any) -> Tensor:
        plan, *indices = ctx.saved_tensors
        if ctx.padding is not None:
            tangent = without_row(tangent.clone(), ctx.padding)
        return gather(tangent, indices, ctx.padding, plan, ctx.name)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple, x: Tensor, padding: Padding, plan: Any, name: str, *indices: Any
    ) -> tuple[Tensor, int]:
        dim, _, _, _, *index_dims = in_dims
        if all(d is None for d in index_dims):
            return gather(_last(x, dim, 1), _trailed(indices), padding, plan, name), -1
        led = _led(indices, index_dims)
        if dim is None:
            return gather(x, led, padding, None, name), 0
        led = [_batch_index(info.batch_size, led), *led]
        inner = None if padding is None else (padding[0] + 1, padding[1])
        return gather(x.movedim(dim, 0), led, inner, None, name), 0


class _ScatterSum(torch.autograd.Function):
    @staticmethod
    @_quick
    def forward(updates: Tensor, shape: Any, plan: Tensor | None, name: str, *indices: Tensor):
        return _scatter_sum_kernel(updates, list(indices), shape, plan, name)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        _, ctx.shape, plan, ctx.name, *indices = inputs
        _keep(ctx, plan, indices)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple:
        plan, *indices = ctx.saved_tensors
        grad = None
        if ctx.needs_input_grad[0]:
            grad = gather(grads[0], indices, None, plan, ctx.name)
        return grad, *[None] * (3 + len(indices))

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *others: Any) -> Tensor:
        plan, *indices = ctx.saved_tensors
        return scatter_sum(tangent, indices, ctx.shape, plan, ctx.name)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple, updates: Tensor, shape: Any, plan: Any, name: str, *indices: Any
    ) -> tuple[Tensor, int]:
        dim, _, _, _, *index_dims = in_dims
        size = info.batch_size
        if all(d is None for d in index_dims):
            wide = _last(updates, dim, size)
            return scatter_sum(wide, _trailed(indices), (*shape, size), plan, name), -1
        led = _led(indices, index_dims)
        led = [_batch_index(size, led), *led]
        return scatter_sum(_first(updates, dim, size), led, (size, *shape), None, name), 0


class _ScatterAdd(torch.autograd.Function):
    @staticmethod
    @_quick
    def forward(x: Tensor, updates: Tensor, plan: Tensor | None, name: str, *indices: Tensor):
        return _scatter_add_kernel(x, updates, list(indices), plan, name)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        x, _, plan, ctx.name, *indices = inputs
        ctx.shape = x.shape
        _keep(ctx, plan, indices)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple:
        plan, *indices = ctx.saved_tensors
        grad = None
        if ctx.needs_input_grad[1]:
            grad = gather(grads[0], indices, None, plan, ctx.name)
        return grads[0], grad, *[None] * (2 + len(indices))

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor | None, update_tangent: Tensor | None, *others: Any) -> Any:
        plan, *indices = ctx.saved_tensors
        if update_tangent is None:
            return tangent.clone() if tangent is not None else None
        if tangent is None:
            return scatter_sum(update_tangent, indices, tuple(ctx.shape), plan, ctx.name)
        return scatter_add(tangent, update_tangent, indices, plan, ctx.name)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple, x: Tensor, updates: Tensor, plan: Any, name: str, *indices: Any
    ) -> tuple[Tensor, int]:
        dim, update_dim, _, _, *index_dims = in_dims
        size = info.batch_size
        if all(d is None for d in index_dims):
            wide = _last(x, dim, size), _last(updates, update_dim, size)
            return scatter_add(*wide, _trailed(indices), plan, name), -1
        led = _led(indices, index_dims)
        led = [_batch_index(size, led), *led]
        wide = _first(x, dim, size), _first(updates, update_dim, size)
        return scatter_add(*wide, led, None, name), 0


# Compilers take the functions as they are, with all their derivatives, instead of looking inside.


def _is_plain(*tensors: Tensor) -> bool:
    """Whether nobody asks for derivatives or batches: an operator alone is quicker."""
    if torch._C._are_functorch_transforms_active():
        return False
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        return False
    return all(unpack_dual(t).tangent is None for t in tensors)


@torch.compiler.allow_in_graph
def gather(
    x: Tensor, indices: Sequence[Tensor], padding: Padding, plan: Tensor | None, name: str
) -> Tensor:
    """`x` read at the positions given; `padding` is a row that gets no gradient."""
    if _is_plain(x):
        return _gather_kernel(x, indices, plan, name)
    return _Gather.apply(x, padding, plan, name, *indices)


@torch.compiler.allow_in_graph
def scatter_sum(
    updates: Tensor, indices: Sequence[Tensor], shape: Any, plan: Tensor | None, name: str
) -> Tensor:
    """The updates added into zeros of the given shape."""
    if _is_plain(updates):
        return _scatter_sum_kernel(updates, indices, shape, plan, name)
    return _ScatterSum.apply(updates, shape, plan, name, *indices)


@torch.compiler.allow_in_graph
def scatter_add(
    x: Tensor, updates: Tensor, indices: Sequence[Tensor], plan: Tensor | None, name: str
) -> Tensor:
    """`x` with the updates added at the positions given."""
    if _is_plain(x, updates):
        return _scatter_add_kernel(x, updates, indices, plan, name)
    return _ScatterAdd.apply(x, updates, plan, name, *indices)
