"""Exported functions in headless Chromium: sizes, and times beside `device="webgpu"` and the CPU.

Run: `python tools/web_times.py`. Without a GPU both run on drivers in software: Chromium's
SwiftShader, and Mesa's lavapipe.
"""

from __future__ import annotations

import gzip
import runpy
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

import pullback as pb  # noqa: E402
from chromium import page_of  # noqa: E402
from pullback.core.pytrees import leaves, map_tree  # noqa: E402

CALLS = 20  # of which the median counts
TIMED = """(async () => {
  const { load } = await import("./NAME.js");
  let began = performance.now();
  const f = await load(undefined, { exact: false });
  const loaded = performance.now() - began, times = [];
  const { inputs } = await f.example();
  for (let k = 0; k < CALLS; k++) {
    began = performance.now();
    await f(inputs);
    times.push(performance.now() - began);
  }
  return [f.dispatches, loaded, times.sort((a, b) => a - b)[CALLS >> 1]];
})()"""


def cases() -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    """Functions with their arguments."""
    spirals = runpy.run_path(str(ROOT / "examples" / "web" / "spirals.py"))
    args = spirals["arguments"]()
    many = lambda x: pb.fori_loop(0, 500, lambda k, v: v / v.sum(), x)  # noqa: E731
    return {
        "add": (lambda x: x + 1, (pb.ones(1000),)),
        "loop": (many, (pb.ones(100),)),
        "train": (spirals["train"], args),
        "picture": (spirals["picture"], args[:1]),
    }


def median_ms(function: Callable[..., Any], args: tuple[Any, ...]) -> float:
    """Milliseconds of a call that reads its results."""
    times = []
    for _ in range(CALLS + 1):
        began = time.perf_counter()
        for x in leaves(function(*args)):
            x.numpy()
        times.append(time.perf_counter() - began)
    return 1e3 * statistics.median(times[1:])


def main() -> None:
    print("| | dispatches | kB, compressed | load, ms | call, ms | on lavapipe | on the CPU |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "empty.html").write_text('<link rel="icon" href="data:,">')
        for label, (function, args) in cases().items():
            jitted = pb.jit(function, name=label)
            text = jitted.export_web(folder, *args).read_bytes()
            size = f"{len(text) / 1e3:.0f}, {len(gzip.compress(text)) / 1e3:.0f}"
            with page_of(folder) as page:
                page.open("empty.html")
                timed = TIMED.replace("NAME", label).replace("CALLS", str(CALLS))
                count, loaded, call = page.evaluate(timed)
            there = map_tree(lambda x: x.to_device("webgpu"), args)
            try:
                ours = f"{median_ms(jitted, there):.3g}"
            except pb.DeviceError:
                ours = ""
            here = median_ms(jitted, args)
            row = [label, count, size, f"{loaded:.0f}", f"{call:.3g}", ours, f"{here:.3g}"]
            print("|", " | ".join(map(str, row)), "|", flush=True)


if __name__ == "__main__":
    main()
