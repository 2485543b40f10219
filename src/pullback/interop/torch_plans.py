"""Plans for torch tensors: indices arranged once, used by every call that reads or adds with them.

Operators of PyTorch take tensors, so a plan travels as a token: a tensor of one number, whose
memory keeps the plan alive wherever the tensor is kept, be it saved for a backward pass or an input
of a compiled graph.
"""
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

from itertools import count
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor

__all__ = ["ScatterPlan", "planned"]


class _Holder:
    """Owns a plan, and the number by which it is found."""

    def __init__(self, key: int, plan: Any):
        self.plan = plan
        self._number = np.array([key])
        self.__array_interface__ = self._number.__array_interface__


_holders: WeakValueDictionary[int, _Holder] = WeakValueDictionary()
_next_key = count(1).__next__


def _token(plan: Any) -> Tensor:
    key = _next_key()
    holder = _Holder(key, plan)
    _holders[key] = holder
    return torch.from_numpy(np.asarray(holder))


def planned(token: Tensor) -> Any:
    """The plan of a token."""
    holder = _holders.get(int(token))
    if holder is None:
        raise RuntimeError("scatter_plan: the plan is gone. Keep it as long as graphs use it.")
    return holder.plan


class ScatterPlan:
    """Indices into an axis of `size` elements, arranged once; made by `scatter_plan`.

    Functions of this module take it in place of the indices. It has its own copy of them, so
    that later changes of the tensor it was made from do not matter.
    """

    def __init__(self, indices: Tensor, size: int, plan: Any):
        self.indices = indices
        self.size = size
        self.token = _token(plan)

    @property
    def count(self) -> int:
        """How many indices there are."""
        return self.indices.numel()

    @property
    def nbytes(self) -> int:
        """The memory it takes, its indices included."""
        return planned(self.token).nbytes + self.count * self.indices.itemsize

    def __repr__(self) -> str:
        shape = tuple(self.indices.shape)
        return f"ScatterPlan({shape} into {self.size}, {self.nbytes} bytes, {self.indices.device})"
