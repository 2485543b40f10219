"""Indices out of range that the device has found, and when their errors are raised.

A kernel that meets one notes its position in the words of its call, and sets a word of the host's.
So whoever has waited for the device needs to look at that word alone.
"""
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import atexit
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import count
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from pullback.core.errors import DeviceError
from pullback.interop.torch_errors import out_of_range
from pullback.interop.torch_reads import call_after_reads

__all__ = ["PendingCalls", "check", "launching", "line_of", "settle"]

BATCH = 16  # calls between two events, each of which costs as much as half a launch

_current_task = torch._C._current_graph_task_id
# PyTorch without CUDA has none of these: there a test's device and its stream are 0.
_current_device: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", int)
_raw_stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", int)
is_capturing: Callable[[], bool] = getattr(
    torch._C, "_cuda_isCurrentStreamCapturing", torch.cuda.is_current_stream_capturing
)


# A call: its order, the `executor.StreamWords` and the number of its words there, the name of the
# function, its indices, and the sizes of what they go into.
Call = tuple[int, Any, int, str, tuple[Tensor, ...], Sequence[int]]


def _error(call: Call) -> IndexError:
    """The error of a call's first bad index, which is read for that."""
    _thread.is_reporting = True
    try:
        return out_of_range(*call[3:])
    finally:
        _thread.is_reporting = False


class _Thread(threading.local):
    """What a thread is doing."""

    task = -1  # the last backward pass it was seen in
    is_reporting = False

    def __init__(self):
        self.lines: dict[tuple[int, int], PendingCalls] = {}


_thread = _Thread()
_lines: list[PendingCalls] = []
_told: dict[int, Any] = {}  # the words of the host, by device
_next_order = count().__next__


class PendingCalls:
    """The calls of a thread on a stream that the device may still be working on."""

    def __init__(self, device: int, stream: int):
        executor = _executor()
        self.gpu, self.stream, self._device = executor.gpu_of(device), stream, device
        self._slots_of, self._most = executor.StreamWords.of, executor.SLOTS
        self._slots = self._slots_of(device, stream)
        self.calls: deque[Call] = deque()
        self.last = self.ended = -1  # the orders of the last call, and of one known to have ended
        self._marks: deque[tuple[Any, int]] = deque()  # events, and the order of the last call
        self._events: list[Any] = []  # that can be used again
        _told[device] = self.gpu.told

    def own_slot(self) -> int:
        """The address of words for a call whose indices another reports."""
        slots = self._slots
        if slots.used == self._most:
            slots = self._slots = self._slots_of(self._device, self.stream)
        return slots.take()

    def slot(self, name: str, indices: tuple[Tensor, ...], sizes: Sequence[int]) -> int:
        """The address of the words of a new call."""
        slots, calls = self._slots, self.calls
        if slots.used == self._most:
            slots = self._slots = self._slots_of(self._device, self.stream)
        if len(calls) % BATCH == BATCH - 1:
            self._let_go()
        self.last = order = _next_order()
        calls.append((order, slots, slots.used, name, indices, sizes))
        return slots.take()

    def add(
        self,
        slots: Any,
        number: int,
        name: str,
        indices: tuple[Tensor, ...],
        sizes: Sequence[int],
    ) -> None:
        """Keep what the error of a call would need, whose words are there already."""
        if len(self.calls) % BATCH == BATCH - 1:
            self._let_go()
        self.last = order = _next_order()
        self.calls.append((order, slots, number, name, indices, sizes))

    def has_ended(self) -> bool:
        """Whether the device has done all that is on the stream."""
        if _current_device() == self._device:
            return self.gpu.is_idle(self.stream)
        with self.gpu.current():
            return self.gpu.is_idle(self.stream)

    def mark(self) -> Any:
        """An event that comes when all calls so far have ended; None if it is known already."""
        last, marks = self.last, self._marks
        if last <= self.ended:
            return None
        if not marks or marks[-1][1] != last:
            event = self._events.pop() if self._events else None
            marks.append((self.gpu.mark(self.stream, event), last))
        return marks[-1][0]

    def _let_go(self) -> None:
        """Forget the calls that have ended well."""
        marks, calls = self._marks, self.calls
        self.mark()
        while marks and (marks[0][1] <= self.ended or marks[0][0].done):
            event, last = marks.popleft()
            self._events.append(event)
            self.ended = max(self.ended, last)
        settle()
        while calls and calls[0][0] <= self.ended:
            calls.popleft()

    def bad_calls(self) -> list[Call]:
        """The calls of which it is known by now that an index was bad."""
        calls = list(self.calls)
        known = {id(slots): slots for _, slots, *_ in calls}
        words = {key: slots.words(self.gpu.side_stream) for key, slots in known.items()}
        return [c for c in calls if words[id(c[1])][c[2], 0]]


@cache
def _executor() -> Any:
    from pullback.runtime.cuda.scatter import executor

    return executor


@cache
def _watch_reads() -> Any:
    return call_after_reads(_settle_read)


def line_of(device: int, stream: int) -> PendingCalls:
    """The calls of this thread on a stream."""
    line = _thread.lines.get((device, stream))
    if line is None:
        _watch_reads()
        line = _thread.lines[device, stream] = PendingCalls(device, stream)
        _lines.append(line)
    return line


def settle() -> None:
    """Raise the first error that the device has told of."""
    for word in _told.values():
        if word.value:
            _raise_first()


def _raise_first() -> None:
    for word in _told.values():
        word.value = 0  # before the words are read: what is told from here on is looked at again
    found = [(c[0], line, c) for line in list(_lines) for c in line.bad_calls()]
    if not found:
        return
    if len(found) > 1:
        next(iter(_told.values())).value = 1  # the others are raised later
    _, line, call = min(found, key=itemgetter(0))
    line.calls.remove(call)
    raise _error(call)


def _settle_read() -> None:
    """Raise what was found before a value was read: all that it comes from has ended."""
    if not _thread.is_reporting and not torch.cuda.is_current_stream_capturing():
        settle()


def check() -> None:
    """Wait for the CUDA launches of this module and raise the `IndexError` of a bad index.

    Otherwise it is raised by whatever comes first: reading a CUDA tensor, a later call, when the
    launch has ended, the end of a backward pass through this module, or the end of the program. On
    the CPU an index out of range raises at once.
    """
    for line in list(_lines):
        if line.calls:
            line.gpu.join(line.stream)
    settle()


atexit.register(check)


def launching(device: int) -> PendingCalls:
    """The calls of this thread on torch's current stream, before a launch there.

    Earlier errors are raised, and it is seen to those at the end of a backward pass.
    """
    if is_capturing():
        raise DeviceError(
            "pullback.torch: a CUDA graph can't hold these launches, got one that is being"
            " captured. They report bad indices to words that serve once: call them outside."
        )
    task = _current_task()
    if task != -1 and task != _thread.task:
        _begin_pass(task)
    for word in _told.values():
        if word.value:
            _raise_first()
    stream = _raw_stream(device)
    return _thread.lines.get((device, stream)) or line_of(device, stream)


def _begin_pass(task: int) -> None:
    """See that the errors of calls before a backward pass are raised at its end, if not before."""
    _thread.task = task
    late = []
    for line in list(_lines):
        last = line.last
        if last > line.ended:
            if line.has_ended():
                line.ended = last
            else:
                late.append(line.mark())
    if late:
        # Waiting for these at the end keeps no device waiting: the launches of the pass itself are
        # enqueued by then.
        settled = partial(_settle_marks, late)
        torch.autograd.Variable._execution_engine.queue_callback(settled)


def _settle_marks(marks: Sequence[Any]) -> None:
    for mark in marks:
        mark.synchronize()
    settle()
