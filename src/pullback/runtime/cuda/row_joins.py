"""How row kernels join lanes to blocks of the tree, and these to a row."""

from __future__ import annotations

from collections.abc import Sequence

from pullback.compile.kernel.forms import Reduce
from pullback.compile.kernel.order import LANES
from pullback.runtime.cuda.kernels import weight

__all__ = ["HEAVY_JOIN", "blocks_joined", "lanes_joined"]

HEAVY_JOIN = 12  # instructions that join an element to a fold, from which on none does it twice
FEW_JOINED = 8  # blocks of a row that each thread joins for itself, with one barrier

_LANES_JOINED = """
#pragma unroll
      for (int by = {lanes} / 2; by; by /= 2) g{m} = {f}_combine(g{m}, {f}_down(g{m}, by, {lanes}));
      if (blocks == 1) f{m} = {f}_of(g{m}, 0, {span});
      else if (place == 0 && q < blocks) slots{m}[q] = g{m};"""

_FEW_JOINED = """
    if (blocks > 1 && blocks <= {few}) {{
      __syncthreads();
{each}
    }}"""

_FOLD_JOINED = """
      {f}_acc b{m}[{few}];
#pragma unroll
      for (int q = 0; q < {few}; ++q)
        if (q < blocks) b{m}[q] = slots{m}[q];
#pragma unroll
      for (int s = 1; s < {few}; s *= 2)
#pragma unroll
        for (int q = 0; q + s < {few}; q += 2 * s)
          if (q + s < blocks) b{m}[q] = {f}_combine(b{m}[q], b{m}[q + s]);
      f{m} = b{m}[0];"""

_BLOCKS_JOINED = """
    if (blocks > {few}) {{
      for (int s = 1; s < blocks; s *= 2) {{
        __syncthreads();
        for (int q = first * 2 * s; q + s < blocks; q += own * 2 * s) {{
{each}
        }}
      }}
      __syncthreads();
{last}
    }}"""


def lanes_joined(folds: Sequence[tuple[int, str]], turns: int) -> str:
    """The blocks of folds, which have these numbers and names; `turns` of `RowCode`."""
    return "".join(
        _LANES_JOINED.format(lanes=LANES, span=LANES * turns, m=m, f=f) for m, f in folds
    )


def blocks_joined(kernels: Sequence[Reduce], folds: Sequence[tuple[int, str]]) -> str:
    """The row's folds: each thread joins few blocks for itself if that is little work."""
    few = 1 if any(weight(r.combine) >= HEAVY_JOIN for r in kernels) else FEW_JOINED
    text = ""
    if few > 1:
        own = "".join(_FOLD_JOINED.format(m=m, f=f, few=few) for m, f in folds)
        text = _FEW_JOINED.format(few=few, each=own)
    each = [f"          slots{m}[q] = {f}_combine(slots{m}[q], slots{m}[q + s]);" for m, f in folds]
    last = [f"      f{m} = slots{m}[0];" for m, _ in folds]
    return text + _BLOCKS_JOINED.format(few=few, each="\n".join(each), last="\n".join(last))
