"""Gather and scatter for PyTorch tensors, with gradients that have the same bits on every run.

    import pullback.torch as pbt

    scale = pbt.gather_with_index_add(scales, bins)      # instead of scales[bins]

The functions have the names and arguments of PyTorch's and work on the CPU and on CUDA, on torch's
own memory and stream. They can be differentiated to any order, forward and backward, and go
through `torch.compile` and `torch.func`.
"""

from __future__ import annotations

from pullback.interop.torch_faults import check
from pullback.interop.torch_functions import (
    Embedding,
    embedding,
    gather,
    gather_with_index_add,
    index,
    index_add,
    index_put,
    index_select,
    scatter_add,
    scatter_plan,
    segment_sum,
)
from pullback.interop.torch_plans import ScatterPlan

__all__ = [
    "Embedding",
    "ScatterPlan",
    "check",
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
