"""Write the section about WebGPU of docs/conformance.md: operation x dtype x order of derivative.

A cell passes if results on webgpu have the bits of the CPU, and is near if roundings alone part
them, as where the CPU leaves a matrix to LAPACK. Cells that are known already stay in
report/webgpu_cells.json, those of each adapter; --anew forgets them. Some operations at a time have
a process of their own, since kernels are kept as long as one lives.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any, TypeAlias

import numpy as np

import sections

ROOT = Path(__file__).parents[1]
KNOWN = ROOT / "report" / "webgpu_cells.json"
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "generated")]

TITLE = "## On WebGPU"
TOGETHER = 100  # operations of a process: it takes some hundred megabytes, and shares kernels
DTYPES = ("float32", "float16", "bfloat16", "complex64")
ORDERS = {"float32": ("fwd", "1", "2", "3")}  # of the others: results and first derivatives
EVERY = 6  # of the operations in the other dtypes, one in so many: complex kernels compile slowly
# What is said of a cell, but for what it lacks or raises.
PASS, NEAR, OTHER = "pass", "near", "other bits"
NEAR_EPS = 1e4  # differences in units of eps: derivatives of decompositions magnify rounding
LACKS = "its samples hold "


def ways() -> dict[str, list[Callable[[Any], Any]]]:
    """What each cell runs."""
    import matrix

    import pullback as pb

    def derivative(order: int) -> Callable[[Any], Any]:
        return lambda case: matrix.directional(case, order, False, pb.float32)

    eager = {str(order): [derivative(order)] for order in (1, 2, 3)}
    return {"fwd": [lambda case: matrix.call(case.entry, case.sample), matrix.jitted], **eager}


def outcome(case: Any, way: Callable[[Any], Any], order: str) -> str:
    """What a case says; nothing where it does not apply."""
    import matrix

    import pullback as pb
    from cuda_registry import distance, same_bits

    def values() -> list[np.ndarray]:
        return [x.numpy() for x in matrix.arrays_of(way(case))]

    with np.errstate(all="ignore"):
        try:
            expected = values()
        except (pb.DTypeError, pb.GradientError):
            return ""
        if not expected:
            return ""
        try:
            with pb.device("webgpu"):
                found = values()
        except (pb.DeviceError, pb.DTypeError) as error:
            return reason(str(error))
        except Exception as error:  # whatever it raises is to be reported
            return f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
    if all(same_bits(x, y) for x, y in zip(found, expected, strict=True)):
        return PASS
    if order == "fwd":  # vectors have signs, and bases can be turned
        found, expected = (matrix.determined(case.entry, np, x) for x in (found, expected))
    apart = max(distance(x, y) for x, y in zip(found, expected, strict=True))
    eps = max(float(np.finfo(case.dtype.real.numpy).eps), float(np.finfo(np.float32).eps))
    return NEAR if apart <= NEAR_EPS * eps else OTHER


def reason(error: str) -> str:
    """Why a sample can't be, by its error."""
    refused = re.search(r"webgpu has no (\w+)", error)
    return f"{LACKS}{refused[1]}" if refused else error.splitlines()[0]


def worst(words: list[str]) -> str:
    """What is said of a cell by what is said of its runs."""
    return next((w for w in words if w not in (PASS, NEAR)), NEAR if NEAR in words else PASS)


def said(cases: list[Any], every: list[Callable[[Any], Any]], order: str, count: int) -> str:
    """What a cell says: of `count` samples, without those in dtypes that the device has not."""
    found: list[list[str]] = []
    for case in cases:
        words = [w for w in (outcome(case, way, order) for way in every) if w]
        if any(w.startswith(LACKS) for w in words) and case is not cases[-1]:
            continue
        found.append(words)
        if len(found) == count:
            break
    words = [w for own in found for w in own]
    return worst(words) if words else ""


def cells(keys: list[str], count: int, step: int) -> Iterator[tuple[str, dict[str, str]]]:
    """The cells of operations, by dtype and order: the first word that is no pass. One operation
    in `step` is run in all dtypes.
    """
    import matrix

    import pullback as pb

    every, order_of = ways(), {key: n for n, key in enumerate(sorted(matrix.REGISTRY))}
    for key in keys:
        own: dict[str, str] = {}
        dtypes = DTYPES if order_of[key] % step == 0 else DTYPES[:1]
        for dtype in (getattr(pb, d) for d in dtypes):
            drawn = len(matrix.samples(matrix.REGISTRY[key], dtype))
            cases = [matrix.Case(key, i, dtype) for i in range(drawn)]
            for order in ORDERS.get(dtype.name, ("fwd", "1")):
                word = said(cases, every[order], order, count)
                if word:
                    own[f"{dtype.name} {order}"] = word
        yield key, own


Cells: TypeAlias = "dict[str, dict[str, str]]"  # what is said, by operation, by dtype and order


def section(known: dict[str, Cells], count: int) -> str:
    """The text of the section: the cells of each adapter."""
    titles = [f"{d} {o}" for d in DTYPES for o in ORDERS.get(d, ("fwd", "1"))]
    near: set[str] = set()
    gaps: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    lines = [
        TITLE,
        "",
        "A cell passes if results and derivatives, eager and compiled, have the bits of the CPU; it"
        f" is near, within {NEAR_EPS:,.0f} units of float32's rounding, where the CPU leaves"
        " matrices to LAPACK, or derivatives go through what it does. With"
        f" {'all samples' if count > 99 else 'the first sample'} of each operation"
        f" in float32; in the other dtypes of all operations (`--wide`), else of one in {EVERY}."
        " Samples that hold float64 or complex128 are passed over.",
        "",
        "To run it again: `python tools/webgpu_cells.py --anew --jobs 2` (an hour on a software"
        " driver, a minute on a GPU beside 16 cores).",
    ]
    for adapter, own in sorted(known.items()):
        total = Counter((t, word) for words in own.values() for t, word in words.items())
        by_word: Counter[str] = Counter()
        for (_, word), n in total.items():
            by_word[word] += n
        near |= {k for k, words in own.items() if NEAR in words.values()}
        for key, words in sorted(own.items()):
            for title, word in words.items():
                if word not in (PASS, NEAR):
                    gaps[f"{word} ({adapter})"][key].append(title)
        rows = {
            "pass": [total[t, PASS] for t in titles],
            "near": [total[t, NEAR] for t in titles],
            "do not": [
                sum(n for (of, w), n in total.items() if of == t and w not in (PASS, NEAR))
                for t in titles
            ],
        }
        lines += [
            "",
            f"**{adapter}: {by_word[PASS]} of {by_word.total()} cells pass**, {by_word[NEAR]} are"
            " near.",
            "",
            "| | " + " | ".join(titles) + " |",
            "|---" * (len(titles) + 1) + "|",
            *(f"| {name} | {' | '.join(map(str, row))} |" for name, row in rows.items()),
        ]
    lines += ["", f"Near: {', '.join(f'`{k}`' for k in sorted(near))}.", ""]
    if gaps:
        lines += ["| why not | cells | operations |", "|---|---|---|"]
    for word, own in sorted(gaps.items(), key=lambda g: -sum(map(len, g[1].values()))):
        names = ", ".join(f"`{k}`" for k in own)
        lines.append(f"| {word} | {sum(map(len, own.values()))} | {names} |")
    return "\n".join(lines) + "\n"


def collect(keys: list[str], given: argparse.Namespace, keep: Callable[[str, Any], None]) -> None:
    """Let a process of its own find the cells of some operations."""
    options = ["--samples", str(given.samples), *(["--wide"] if given.wide else [])]
    command = [sys.executable, __file__, *options, "--only", *keys]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            keep(*json.loads(line))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--anew", action="store_true", help="forget the cells of this adapter")
    parser.add_argument("--samples", type=int, default=1, help="of each operation, at most")
    parser.add_argument("--wide", action="store_true", help="all operations in all dtypes")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--only", nargs="*", help="print the cells of these operations")
    given = parser.parse_args()
    if given.only:
        for row in cells(given.only, given.samples, 1 if given.wide else EVERY):
            print(json.dumps(row), flush=True)
        return 0
    from matrix import REGISTRY

    import pullback as pb

    adapter = pb.device("webgpu").runtime.capabilities()["adapter"]
    known: dict[str, Cells] = json.loads(KNOWN.read_text()) if KNOWN.exists() else {}
    own = known.setdefault(adapter, {})
    if given.anew:
        own.clear()
    KNOWN.parent.mkdir(exist_ok=True)
    lock = Lock()

    def keep(key: str, words: dict[str, str]) -> None:
        with lock:
            own[key] = words
            KNOWN.write_text(json.dumps(known))
            print(key, words, file=sys.stderr, flush=True)

    missing = sorted(set(REGISTRY) - set(own))
    together = min(TOGETHER, -(-len(missing) // given.jobs))
    # neighbours are alike, so that each process takes some of all kinds
    parts = -(-len(missing) // max(1, together))
    shares = [missing[k::parts] for k in range(parts)]
    with ThreadPoolExecutor(given.jobs) as pool:
        list(pool.map(lambda keys: collect(keys, given, keep), shares))
    sections.put(TITLE, section(known, given.samples))
    return 0


if __name__ == "__main__":
    sys.exit(main())
