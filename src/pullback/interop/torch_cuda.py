"""The kernels of `pullback.torch` on CUDA: on torch's memory and torch's current stream.

The CUDA kernels take one index per row. Other forms are brought to it: several index arrays become
one, of positions in the flattened axes.
"""
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import atexit
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from importlib import import_module
from itertools import takewhile
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pullback.core.errors import DeviceError
from pullback.interop.torch_errors import out_of_range
from pullback.interop.torch_plans import planned
from pullback.interop.torch_reads import call_after_reads

__all__ = ["check", "gather", "make_plan", "scatter_add", "scatter_sum"]

MOST_PENDING = 1000  # launches whose error words wait to be looked at
MAILBOXES = 64  # made at a time


@cache
def _module(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise DeviceError(
            f"pullback.torch: CUDA tensors need CuPy, got {error}. Install 'pullback[cuda]'."
        ) from None


class _IndexRows(NamedTuple):
    """One index per row, and how many rows of what width there are."""

    places: Tensor
    rows: int
    width: int


def _whole(indices: Sequence[Tensor]) -> tuple[int, ...]:
    """The shape that index arrays broadcast to."""
    if len(indices) == 1:
        return indices[0].shape
    return torch.broadcast_shapes(*[i.shape for i in indices])


def _flattened(indices: Sequence[Tensor], shape: Sequence[int]) -> _IndexRows:
    """The indices as one index per row of an array of `shape`."""
    k = len(indices)
    rest = list(shape[k:])
    whole = _whole(indices)
    lead = len(whole) - len(rest)
    if all(n == 1 for n in whole[lead:]):
        if k == 1:
            return _IndexRows(indices[0].reshape(-1).contiguous(), shape[0], prod(rest))
        target, axes = whole[:lead], [i.reshape(i.shape[:lead]) for i in indices]
    else:  # an index for each element: the rest is indexed too
        target, axes = (*whole[:lead], *rest), list(indices)
        for d, n in enumerate(rest):
            place = torch.arange(n, device=indices[0].device)
            axes.append(place.reshape(-1, *[1] * (len(rest) - 1 - d)))
    sizes = shape[: len(axes)]
    position = _position(axes, sizes).expand(target).reshape(-1).contiguous()
    return _IndexRows(position, prod(sizes), prod(shape[len(axes) :]))


def _position(axes: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
    """Row-major positions; an index out of range gives one that is out of range too."""
    total, bad = torch.zeros((), dtype=torch.int64, device=axes[0].device), None
    for axis, n in zip(axes, sizes, strict=True):
        wide = axis.to(torch.int64)
        outside = (wide < -n) | (wide >= n)
        bad = outside if bad is None else bad | outside
        total = total * n + torch.where(wide < 0, wide + n, wide)
    assert bad is not None
    return torch.where(bad, prod(sizes), total)


# -- errors ----------------------------------------------------------------------------------------


class _Mailbox:
    """A word of page-locked memory where the error word of a launch comes by itself."""

    __slots__ = ("_done", "_free", "_place", "_words", "address")

    def __init__(self, words: Tensor, place: int, free: list[_Mailbox]):
        self._words, self._place, self._free = words.numpy(), place, free
        self.address = words.data_ptr() + 8 * place
        self._done = torch.cuda.Event()

    def post(self, checked: Any) -> None:
        """Enqueue the copy of the word of a launch."""
        checked.copy_word(self.address)
        self._done.record()

    def is_full(self) -> bool:
        """Whether the word has come."""
        return self._done.query()

    def empty(self) -> int:
        """The word, which is waited for; the mailbox is free then."""
        self._done.synchronize()
        word = int(self._words[self._place])
        self._free.append(self)
        return word


_mailboxes: dict[int, list[_Mailbox]] = {}  # free ones, by device


def _mailbox(device: int) -> _Mailbox:
    free = _mailboxes.setdefault(device, [])
    try:
        return free.pop()
    except IndexError:
        words = torch.zeros(MAILBOXES, dtype=torch.int64, pin_memory=True)
        free += [_Mailbox(words, k, free) for k in range(1, MAILBOXES)]
        return _Mailbox(words, 0, free)


class _Thread(threading.local):
    """What a thread is doing."""

    task = -1  # the last backward pass it was seen in
    is_reporting = False


_thread = _Thread()


@dataclass(frozen=True, eq=False)
class _Pending:
    """A launch whose error word has not been looked at."""

    mailbox: Any
    checked: Any
    name: str
    indices: tuple[Tensor, ...]
    sizes: tuple[int, ...]

    def settle(self) -> None:
        if self.mailbox.empty():
            raise self._error()

    def _error(self) -> IndexError:
        _thread.is_reporting = True  # the indices are read
        try:
            return out_of_range(self.name, self.indices, self.sizes)
        finally:
            _thread.is_reporting = False


_pending: deque[_Pending] = deque()


def _settle(launches: Iterable[_Pending]) -> None:
    """Raise what launches found, without those that another thread has looked at meanwhile."""
    for launch in launches:
        try:
            _pending.remove(launch)
        except ValueError:
            continue
        launch.settle()


def check() -> None:
    """Wait for the CUDA launches of this module and raise the `IndexError` of a bad index.

    Otherwise it is raised by whatever comes first: reading a CUDA tensor, a later call, when the
    launch has ended, the end of a backward pass through this module, or the end of the program. On
    the CPU an index out of range raises at once.
    """
    _settle(tuple(_pending))


atexit.register(check)


def _settle_ended() -> None:
    """Raise what launches that have ended found, up to the first that has not."""

    def is_due(launch: _Pending) -> bool:
        return len(_pending) > MOST_PENDING or launch.mailbox.is_full()

    _settle(takewhile(is_due, tuple(_pending)))


def _settle_read() -> None:
    """Raise what launches that have ended found: all that a value comes from, when it was read."""
    if _pending and not _thread.is_reporting and not torch.cuda.is_current_stream_capturing():
        _settle(launch for launch in tuple(_pending) if launch.mailbox.is_full())


@cache
def _watch_reads() -> Any:
    return call_after_reads(_settle_read)


def _settle_after_backward() -> None:
    """Have what was launched before a backward pass raise at its end, if one is under way.

    Waiting for it then keeps no device waiting: the launches of the pass itself are enqueued.
    """
    task = torch._C._current_graph_task_id()
    if task == -1 or task == _thread.task:
        return
    _thread.task = task
    if _pending:
        settle = partial(_settle, tuple(_pending))
        torch.autograd.Variable._execution_engine.queue_callback(settle)


def _watch(checked: Any, name: str, indices: Sequence[Tensor], sizes: Sequence[int]) -> None:
    _watch_reads()
    mailbox = _mailbox(checked.device)
    mailbox.post(checked)
    _pending.append(_Pending(mailbox, checked, name, tuple(indices), tuple(sizes)))


# -- the kernels -----------------------------------------------------------------------------------


@lru_cache(256)
def _stream(pointer: int, device: int) -> Any:
    """A stream of torch's for CuPy."""
    return _module("cupy").cuda.ExternalStream(pointer, device)


@contextmanager
def _working_on(device: Any) -> Iterator[Any]:
    """Our kernels, launched on torch's current stream of the device."""
    if torch.cuda.is_current_stream_capturing():
        raise DeviceError(
            "pullback.torch: a CUDA graph can't hold these launches, got one that is being"
            " captured. They report bad indices to words that serve once: call them outside."
        )
    number = device.index
    stream = _stream(torch.cuda.current_stream(number).cuda_stream, number)
    with torch.cuda.device(number), stream:
        _settle_ended()
        _settle_after_backward()
        yield _module("pullback.runtime.cuda.scatter")


class _Flags(NamedTuple):
    """Those of a dense array."""

    c_contiguous: bool = True


class _Array:
    """As much of a CuPy array as our kernels ask for, in the memory of a dense tensor."""

    __slots__ = ("dtype", "itemsize", "ptr", "shape", "size", "tensor")
    flags = _Flags()

    def __init__(self, t: Tensor):
        self.tensor, self.ptr = t, t.data_ptr()
        self.dtype, self.shape = _carrier(t.dtype), tuple(t.shape)
        self.itemsize, self.size = self.dtype.itemsize, t.numel()

    @property
    def data(self) -> _Array:
        return self


@cache
def _carrier(dtype: torch.dtype) -> np.dtype:
    """NumPy's dtype for a tensor's elements, or for their bits."""
    name = str(dtype).removeprefix("torch.")
    return np.dtype("uint16" if name == "bfloat16" else name)


def _shared(t: Tensor) -> Any:
    """The memory of a dense tensor as a CuPy array, which keeps it alive."""
    cupy = _module("cupy")
    memory = cupy.cuda.UnownedMemory(t.data_ptr(), t.numel() * t.itemsize, t, t.device.index)
    return cupy.ndarray(tuple(t.shape), _carrier(t.dtype), cupy.cuda.MemoryPointer(memory, 0))


def _checked_sizes(name: str, indices: Sequence[Tensor], sizes: Sequence[int]) -> None:
    """No index is right where an axis is empty."""
    if 0 in sizes and all(i.numel() for i in indices):
        raise out_of_range(name, indices, sizes)


def gather(x: Tensor, indices: Sequence[Tensor], plan: Tensor | None, name: str) -> Tensor:
    """`x` read at the positions given: the form of `pullback.primitive.gather`."""
    rest, sizes = tuple(x.shape[len(indices) :]), x.shape[: len(indices)]
    whole = _whole(indices)
    out = x.new_empty((*whole[: len(whole) - len(rest)], *rest))
    if out.numel() == 0:
        return out
    _checked_sizes(name, indices, sizes)
    with _working_on(x.device) as kernels:
        index, rows, width = _flattened(indices, x.shape)
        table = x.contiguous().view(rows, width)
        checked = kernels.gather(*map(_Array, (table, index, out.view(-1, width))))
        _watch(checked, name, indices, sizes)
    return out


def _added(
    out: Tensor, updates: Tensor, indices: Sequence[Tensor], plan: Tensor | None, name: str
) -> Tensor:
    if updates.numel() == 0:
        return out
    sizes = out.shape[: len(indices)]
    _checked_sizes(name, indices, sizes)
    with _working_on(out.device) as kernels:
        index, rows, width = _flattened(indices, out.shape)
        values = updates.reshape(-1, width).contiguous()
        checked = kernels.scatter_add(
            *map(_Array, (index, values, out.view(rows, width))),
            plan=None if plan is None else planned(plan),
            dtype="bfloat16" if out.dtype is torch.bfloat16 else None,
        )
        _watch(checked, name, indices, sizes)
    return out


def scatter_add(
    x: Tensor, updates: Tensor, indices: Sequence[Tensor], plan: Tensor | None, name: str
) -> Tensor:
    """`x` with the updates added: the form of `pullback.primitive.scatter_add`."""
    out = x.new_empty(x.shape).copy_(x)
    return _added(out, updates, indices, plan, name)


def scatter_sum(
    updates: Tensor, indices: Sequence[Tensor], shape: Sequence[int], plan: Tensor | None, name: str
) -> Tensor:
    """The updates added into zeros of the given shape."""
    return _added(updates.new_zeros(tuple(shape)), updates, indices, plan, name)


def make_plan(indices: Tensor, size: int) -> Any:
    """The CUDA plan of indices into `size` rows."""
    with _working_on(indices.device) as kernels:
        return kernels.make_plan(_shared(indices.reshape(-1)), size)
