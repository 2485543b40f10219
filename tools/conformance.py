"""Write docs/conformance.md: operation x dtype x order of derivative, by the checks of the tests,
and the derivatives that PyTorch lacks (tools/gaps.py; needs torch). The section about the Array
API's test suite, which tools/array_api.py writes, is kept, as that about CUDA, by
tools/cuda_conformance.py.

With --check nothing is computed: the page must list exactly the operations of the registry.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "generated"))

import matrix  # noqa: E402  (found on the path set above)
import test_derivatives  # noqa: E402
import test_forward  # noqa: E402

import array_api  # noqa: E402  (found beside this file)
import cuda_conformance  # noqa: E402  (found beside this file)
import gaps  # noqa: E402  (found beside this file)
import pullback as pb  # noqa: E402
import sections  # noqa: E402  (found beside this file)
import webgpu_cells  # noqa: E402  (found beside this file)
from pullback.core.dtypes import DType  # noqa: E402
from pullback.ir.op import REGISTRY, Public  # noqa: E402

PASS, FAIL, NONE, REFUSED, EMPTY = "pass", "FAIL", "none", "-", ""
WIDE = (pb.float64, pb.complex128)
NARROW = (pb.float32, pb.float16, pb.bfloat16)
COMMAND = "python tools/conformance.py"


class Capped(NamedTuple):
    """A case whose derivatives are checked up to `order` only."""

    case: matrix.Case
    order: int

    @property
    def sample(self) -> Any:
        sample = self.case.sample
        return sample._replace(order=min(self.order, sample.order))

    @property
    def entry(self) -> Public:
        return self.case.entry

    @property
    def dtype(self) -> DType:
        return self.case.dtype


def outcome(check: Callable[..., Any], case: Any, problems: list[str]) -> str:
    """What a generated test says about a case: pass, FAIL, or nothing where it does not apply."""
    try:
        with np.errstate(all="ignore"):
            check(case)
    except pytest.skip.Exception:
        return EMPTY
    except (Exception, pytest.fail.Exception) as error:  # whatever it raises is to be reported
        inner = case.case if isinstance(case, Capped) else case
        first = next((line for line in str(error).splitlines() if line.strip()), "")
        problems.append(f"{inner}: {type(error).__name__}: {first.strip()}")
        return FAIL
    return PASS


def worst(results: list[str]) -> str:
    """The cell for several samples."""
    return FAIL if FAIL in results else PASS if PASS in results else EMPTY


def cases_of(key: str, dtype: DType) -> list[matrix.Case]:
    return [matrix.Case(key, i, dtype) for i in range(len(matrix.samples(REGISTRY[key], dtype)))]


def orders(key: str, dtype: DType, problems: list[str]) -> list[str]:
    """The cells for orders 1, 2 and 3."""
    check = test_derivatives.test_orders_one_to_three_agree_with_finite_differences
    cells: list[list[str]] = [[], [], []]
    for case in cases_of(key, dtype):
        most = min(case.sample.order, 3)
        whole = outcome(check, case, problems)
        for k in range(1, most + 1):
            # Only after a failure is it worth asking which order failed.
            same = whole if whole != FAIL else outcome(check, Capped(case, k), [])
            cells[k - 1].append(same)
    return [worst(c) for c in cells]


def row(key: str, problems: list[str]) -> list[str]:
    """The cells of one operation."""
    entry = REGISTRY[key]
    has = matrix.differentiable(entry)
    claim = test_derivatives.test_no_gradient_claims_are_right
    cells = []
    for dtype in WIDE:
        if not matrix.accepts(entry, dtype):
            cells += [REFUSED] * 3
        elif has:
            cells += orders(key, dtype, problems)
        else:
            right = worst([outcome(claim, c, problems) for c in cases_of(key, pb.float64)])
            cells += [FAIL if right == FAIL else NONE] * 3
    for dtype in NARROW:
        if not matrix.accepts(entry, dtype):
            cells += [REFUSED] * 2
            continue
        forward = test_forward.test_forward_agrees_with_the_oracle
        first = test_derivatives.test_first_order_in_narrow_dtypes_is_that_of_float64
        drawn = cases_of(key, dtype)
        cells.append(worst([outcome(forward, c, problems) for c in drawn]))
        cells.append(worst([outcome(first, c, problems) for c in drawn]) if has else NONE)
    return cells


def reason(entry: Public) -> str:
    return getattr(entry, "no_gradient", "") or (
        "" if matrix.differentiable(entry) else "no floating result depends on an operand"
    )


HEAD = """# Conformance

<!-- Written by tools/conformance.py. -->

Which derivatives of which operations are checked, and how it went. Each cell runs the checks of
`tests/generated` on all samples of an operation: derivatives of order k against finite differences
of those of order k - 1, in float64 and complex128, to order 3; results in narrow dtypes against the
oracle (fwd), and their gradients against those in float64 (1st).

{totals}

| word | meaning |
|---|---|
| pass | all samples agree |
| FAIL | a sample does not agree; see below the table |
| - | the operation does not take this dtype |
| none | there is no derivative, for the reason in the last column; that claim is checked too |
| (empty) | no sample applies: nothing floating in this dtype, a kink, or a part held fixed |

To make this page anew: `{command}` (a few minutes on 2 cores).

"""
TITLES = ["float64 1", "2", "3", "complex128 1", "2", "3"] + [
    t for d in NARROW for t in (f"{d.name} fwd", "1st")
]


def page() -> tuple[str, int]:
    """The text of the page, and the number of failures."""
    problems: list[str] = []
    rows: dict[str, list[str]] = {}
    keys = sorted(REGISTRY)
    for n, key in enumerate(keys, 1):
        print(f"\r{n}/{len(keys)} {key:30}", end="", file=sys.stderr, flush=True)
        rows[key] = row(key, problems)
    print(file=sys.stderr)
    lines = [
        "| operation | " + " | ".join(TITLES) + " | why none |",
        "|---" * (len(TITLES) + 2) + "|",
    ]
    for key, cells in rows.items():
        lines.append(f"| `{key}` | {' | '.join(cells)} | {reason(REGISTRY[key])} |")
    lacking, wrong = gaps.section()
    if problems or wrong:
        listed = [f"- {p}" for p in dict.fromkeys([*problems, *wrong])]
        lines += ["", "## Failures", "", *listed]
    totals = summary(rows)
    text = HEAD.format(totals=totals, command=COMMAND) + "\n".join(lines) + "\n\n" + lacking
    for tool in (array_api, webgpu_cells, cuda_conformance):
        own = sections.kept(tool.TITLE)
        text += f"\n{own}" if own else ""
    return text, sum(FAIL in cells for cells in rows.values()) + len(wrong)


def summary(rows: dict[str, list[str]]) -> str:
    """The totals, in words and numbers."""
    count = Counter(c for cells in rows.values() for c in cells)
    has = sum(matrix.differentiable(REGISTRY[k]) for k in rows)
    by_order = [sum(cells[k] == PASS for cells in rows.values()) for k in range(6)]
    return (
        f"**{len(rows)} operations, {has} of them differentiable. {count[PASS]} cells pass,"
        f" {count[FAIL]} fail.** Orders 1, 2 and 3 pass in float64 for {by_order[0]}, {by_order[1]}"
        f" and {by_order[2]} operations, in complex128 for {by_order[3]}, {by_order[4]} and"
        f" {by_order[5]}."
    )


def check() -> int:
    """Whether the page lists the operations that there are."""
    text = sections.PAGE.read_text(encoding="utf-8") if sections.PAGE.exists() else ""
    listed = set(re.findall(r"^\| `([\w.]+)` \|", text, flags=re.MULTILINE))
    missing, gone = sorted(set(REGISTRY) - listed), sorted(listed - set(REGISTRY))
    if missing or gone:
        print(f"conformance: not listed: {missing}; no longer there: {gone}. Run `{COMMAND}`.")
    return 1 if missing or gone else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="only compare the names of operations")
    if parser.parse_args().check:
        return check()
    text, failures = page()
    sections.PAGE.write_text(text, encoding="utf-8")
    print(f"wrote {sections.PAGE.relative_to(ROOT)}: {failures} operations fail")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
