"""The section of docs/conformance.md on derivatives that PyTorch does not have.

Ours are taken in float64 and compared with finite differences of the derivative before. PyTorch's
words come from tools/torch_gaps.py: from here, and from a GPU, where that was run and its output
kept in tools/torch_gaps_cuda.json.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pullback as pb
import pullback.nn
import torch_gaps
from torch_gaps import Row

__all__ = ["section"]

RECORDED = Path(__file__).parent / "torch_gaps_cuda.json"
STEP = 2e-3
WORST = 1e-6  # relative error of ours
NEAR = 1e-2  # of PyTorch's number, which may be of half precision

HEAD = """## Derivatives that PyTorch lacks

Along a random line, of the sum of squares of the result. PyTorch's columns hold what it says when
asked (`python tools/torch_gaps.py`); "the same" means that it has the derivative, and the number is
ours. The last column is the relative error of Pullback's derivative in float64 against finite
differences of the one before it.

"""


def derivative(row: Row) -> tuple[float, float]:
    """Our derivative along the line, and finite differences of the one before it."""
    nn = SimpleNamespace(**vars(pb.nn), tensor=pb.tensor)
    points, directions = ([pb.tensor(a) for a in arrays] for arrays in torch_gaps.lines(row))

    def before(t: Any) -> Any:
        y = row.call(nn, *[x + t * v for x, v in zip(points, directions, strict=True)])
        return (y * y).sum()

    for _ in range(row.order - 1):
        before = pb.grad(before)

    def at(t: float) -> float:
        return before(pb.tensor(t, dtype="float64")).item()

    exact = pb.grad(before)(pb.tensor(0.0, dtype="float64")).item()
    weights = {1: 45.0, 2: -9.0, 3: 1.0}
    steps = [c * (at(n * STEP) - at(-n * STEP)) for n, c in weights.items()]
    return exact, sum(steps) / (60.0 * STEP)


def words(said: float | str | None, ours: float) -> str:
    """What PyTorch says, as a cell."""
    if said is None:
        return "(not asked)"
    if isinstance(said, str):
        return said
    same = abs(said - ours) <= NEAR * max(abs(ours), 1.0)
    return "the same" if same else f"{said:.6g}, not {ours:.6g}"


def section() -> tuple[str, list[str]]:
    """The text of the section, and what is wrong in it."""
    asked = [torch_gaps.answers()]
    if RECORDED.exists():
        asked.append(json.loads(RECORDED.read_text(encoding="utf-8")))
    titles = [f"PyTorch {a['torch'].partition('+')[0]} on {a['where']}" for a in asked]
    lines = [
        f"| operation | order | {' | '.join(titles)} | error of ours |",
        "|---" * (len(asked) + 3) + "|",
    ]
    problems = []
    for row in torch_gaps.rows():
        exact, differences = derivative(row)
        error = abs(exact - differences) / max(abs(exact), 1.0)
        if error > WORST or exact == 0.0:
            problems.append(f"{row.name}: order {row.order} is {exact}, not {differences}")
        said = " | ".join(words(a["said"].get(row.name), exact) for a in asked)
        lines.append(f"| {row.name} | {row.order} | {said} | {error:.1e} |")
    return HEAD + "\n".join(lines) + "\n", problems
