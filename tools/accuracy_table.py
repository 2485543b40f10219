"""Writes docs/accuracy.md: the bound and the largest measured error of every function of `mathfun`.

Run: `python tools/accuracy_table.py`.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

import accuracy  # noqa: E402
import pullback as pb  # noqa: E402
from webgpu_functions import computed  # noqa: E402

HEAD = """# Accuracy of the elementary and special functions

Written by `tools/accuracy_table.py`. Errors are in ulps (units in the last place of the exact
result, from mpmath at 60 digits); in the subnormals an ulp is the spacing. `tests/test_mathfun.py`
asserts the bounds at the same points: the whole range on a logarithmic scale, around zeros,
thresholds, branch points and multiples of pi/2. The measured error is the largest over these few
thousand points. The bounds were set from 40 thousand (gamma functions, erfinv) to several million
random points against a quadruple-precision library, with some room left; they are not proofs.

The bounds of `sin`, `cos` and `tan` are for every finite argument. Those of `lgamma` and `digamma`
are for positive arguments, next to their zeros too; left of zero the error is at most {lgamma}
(`lgamma`) and {digamma} (`digamma`) units of 2^-53 (1 + |f(x)| + |f(-x)|).
`polygamma` in float64: {polygamma}.
Functions of a complex argument: |error| is at most 6 units of 2^-53 |result| in complex128 (`pow`
loses more, as |w log z| grows).
float16 and bfloat16 are computed in float32, complex64 in complex128.

WebGPU has no float64, in which half of the functions of float32 are computed: functions on pairs of
words take its place (`docs/webgpu.md`). The column was measured on {adapter};
`tests/webgpu/test_accuracy.py` asserts that the bits are those of the CPU at the same points, but
for results in the subnormals, which an adapter may flush to zero.

| function | float32 bound | measured | on WebGPU | float64 bound | measured |
|---|---|---|---|---|---|
"""


def narrow(name: str) -> float:
    """The largest error of a function of float32 on a machine without float64."""
    xs = accuracy.points(name, "float32")
    return accuracy.largest(computed(name, xs), xs, accuracy.EXACT[name], "float32").ulps


def main() -> None:
    orders = ", ".join(f"order {n} {b:g} ulp" for n, b in accuracy.POLYGAMMA_BOUNDS.items())
    left = {name: f"{bound:g}" for name, bound in accuracy.LEFT_BOUNDS.items()}
    rows = []
    for name, (single, double) in sorted(accuracy.BOUNDS.items()):
        one, two = [accuracy.measure(name, dtype).ulps for dtype in ("float32", "float64")]
        words, label = narrow(name), name.rstrip("_")
        rows.append(f"| {label} | {single:g} | {one:.2f} | {words:.2f} | {double:g} | {two:.2f} |")
    adapter = pb.device("webgpu").runtime.capabilities()["adapter"].partition(" (")[0]
    head = HEAD.format(polygamma=orders, adapter=adapter, **left)
    text = head + "\n".join(rows) + "\n"
    (ROOT / "docs/accuracy.md").write_text(text)


if __name__ == "__main__":
    main()
