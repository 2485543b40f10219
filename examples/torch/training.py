"""Training in PyTorch with `pullback.torch` in place of plain indexing: the same bits, and sooner.

    python examples/torch/training.py [--device cuda] [--quick] [--out report/torch_training.html]

Two models, each trained twice with `x[indices]` and twice with `pullback.torch`:

- words: a table of vectors read by tokens (Zipf's law), their mean, and a small network.
- scales: amplitudes of a million reflections, scaled in 20 bins of resolution and merged into
  complex structure factors, as crystallographic refinement does at every step.

The gradient of reading adds into few places from many. Plain indexing sorts on every backward pass,
or adds in an order that changes from run to run.
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch  # pyright: ignore[reportMissingImports]

import pullback.torch as pbt
from pullback.display.drawing import Series, bars, curves
from pullback.display.progress import Progress
from pullback.display.report import Check, Page


def plainly(table, indices):
    """How the rows are read without us."""
    return table[indices]


class WithPlans:
    """Reads with a plan for each tensor of indices, made when it is first seen."""

    def __init__(self):
        self.plans = {}

    def __call__(self, table, indices):
        key = id(indices), table.shape[0]
        if key not in self.plans:
            self.plans[key] = pbt.scatter_plan(indices, table.shape[0]), indices
        return pbt.gather_with_index_add(table, self.plans[key][0])


PLAIN, OURS, PLANNED = "plain indexing", "pullback.torch", "with plans"
READERS = {PLAIN: plainly, OURS: pbt.gather_with_index_add, PLANNED: WithPlans()}


class Words:
    """Which of ten topics a short text is on, from the mean of its words' vectors."""

    title = "words: embedding + MLP"

    def __init__(self, device: str, quick: bool):
        self.device = device
        self.words, self.width = (1000, 16) if quick else (50_000, 128)
        texts, length = (64, 8) if quick else (2048, 32)
        rng = np.random.default_rng(1)
        weights = 1 / np.arange(1, self.words + 1)
        tokens = rng.choice(self.words, (texts, length), p=weights / weights.sum())
        topics = rng.integers(0, 10, self.words)  # every word is on a topic
        counts = np.apply_along_axis(np.bincount, 1, topics[tokens], minlength=10)
        self.tokens = torch.from_numpy(tokens).to(device)
        self.labels = torch.from_numpy(counts.argmax(1)).to(device)

    def model(self) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(0)
        sizes = {
            "table": (self.words, self.width),
            "first": (self.width, 64),
            "second": (64, 10),
        }
        drawn = {n: 0.1 * torch.randn(s, generator=generator) for n, s in sizes.items()}
        return {n: t.to(self.device).requires_grad_() for n, t in drawn.items()}

    def loss(self, p: dict[str, Any], read: Any) -> Any:
        texts = read(p["table"], self.tokens).mean(1)
        scores = torch.tanh(texts @ p["first"]) @ p["second"]
        return torch.nn.functional.cross_entropy(scores, self.labels)


class Scales:
    """Structure factors and a scale for each bin of resolution, from amplitudes with noise."""

    title = "scales: 20 bins, complex structure factors"

    def __init__(self, device: str, quick: bool):
        reflections, unique, self.bins = (2000, 500, 20) if quick else (1_000_000, 250_000, 20)
        rng = np.random.default_rng(2)
        resolution = np.sort(rng.random(unique))
        bins = np.minimum((resolution * self.bins).astype(np.int64), self.bins - 1)
        parts = rng.standard_normal((2, unique)).astype(np.float32)
        factors = (parts[0] + 1j * parts[1]) * np.exp(-2 * resolution).astype(np.float32)
        merged = rng.integers(0, unique, reflections)  # which of the unique ones is seen
        scale = np.exp(rng.normal(0, 0.5, self.bins))[bins[merged]]
        seen = np.abs(factors[merged]) * scale * (1 + 0.05 * rng.standard_normal(reflections))
        put = lambda a: torch.from_numpy(a).to(device)  # noqa: E731
        self.device, self.merged, self.seen = device, put(merged), put(seen.astype(np.float32))
        self.bin = put(bins[merged])
        noise = 0.1 * rng.standard_normal((2, unique))
        self.start = put((factors + noise[0] + 1j * noise[1]).astype(np.complex64))

    def model(self) -> dict[str, Any]:
        scales = torch.zeros(self.bins, device=self.device)
        return {
            "scales": scales.requires_grad_(),
            "factors": self.start.clone().requires_grad_(),
        }

    def loss(self, p: dict[str, Any], read: Any) -> Any:
        amplitude = read(p["factors"], self.merged).abs() * read(p["scales"], self.bin).exp()
        restraint = (p["factors"] - self.start).abs().square().mean()
        return (amplitude - self.seen).square().mean() + 0.01 * restraint


class Run:
    """One training: losses, seconds of each step, and a name of the final parameters' bits."""

    def __init__(self, problem: Any, read: Any, steps: int, progress: Progress, note: str):
        parameters = problem.model()
        optimizer = torch.optim.Adam(parameters.values(), lr=0.02)
        self.losses, self.seconds = [], []
        for _ in range(steps):
            begin = time.perf_counter()
            optimizer.zero_grad()
            loss = problem.loss(parameters, read)
            loss.backward()
            optimizer.step()
            self.losses.append(loss.item())  # waits for the device
            self.seconds.append(time.perf_counter() - begin)
            progress.advance(f"{note}, loss {self.losses[-1]:.4f}")
        pbt.check()
        bits = hashlib.sha256(np.array(self.losses).tobytes())
        for t in parameters.values():
            values = torch.view_as_real(t.detach()) if t.is_complex() else t.detach()
            bits.update(values.cpu().numpy().tobytes())
        self.digest = bits.hexdigest()[:16]

    def step_time(self) -> float:
        return statistics.median(self.seconds[1:])


def trained(problem: Any, steps: int) -> dict[str, list[Run]]:
    """Two runs with each way of reading, in turns."""
    runs: dict[str, list[Run]] = {name: [] for name in READERS}
    with Progress(2 * len(READERS) * steps, problem.title.partition(":")[0]) as progress:
        for _ in range(2):
            for name, read in READERS.items():
                runs[name].append(Run(problem, read, steps, progress, name))
    return runs


def shown(page: Page, problem: Any, runs: dict[str, list[Run]]) -> list[Check]:
    """The section of a problem, printed too; the checks that it must pass."""
    times = {name: min(r.step_time() for r in both) for name, both in runs.items()}
    same = {name: len({r.digest for r in both}) == 1 for name, both in runs.items()}
    ours, plain = runs[OURS], runs[PLAIN]
    ratio = times[OURS] / times[PLAIN]
    print(f"{problem.title}")
    for name, both in runs.items():
        verdict = f"twice {both[0].digest}" if same[name] else "two different runs"
        loss = f"loss {both[0].losses[0]:.4f} to {both[0].losses[-1]:.4f}"
        print(f"  {name:15} {times[name] * 1e3:8.2f} ms a step, {loss}, {verdict}")
    page.section(problem.title, f"A step takes {ratio:.2f} of the time with plain indexing.")
    steps = range(len(ours[0].losses))
    series = [
        Series(PLAIN, steps, plain[0].losses, "c faint"),
        Series(OURS, steps, ours[0].losses, "a"),
        Series(f"{OURS} again", steps, ours[1].losses, "b dashed"),
    ]
    chart = bars(list(times), [t * 1e3 for t in times.values()], "", "ms a step")
    page.figures(
        ("Loss", curves(series, "step", "loss"), "Both runs of ours lie on each other."),
        ("Time of a step", chart, f"ratio {ratio:.2f}"),
    )
    name = problem.title.partition(":")[0]
    first, last = ours[0].losses[0], ours[0].losses[-1]
    checks = [
        Check(f"{name}, {n}: the same bits twice", *(r.digest for r in runs[n]), same[n])
        for n in (OURS, PLANNED)
    ]
    fall = Check(
        f"{name}: the loss falls", f"{last:.4f}", f"< 0.9 x {first:.4f}", last < 0.9 * first
    )
    return [*checks, fall]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--out", type=Path, default=Path("report/torch_training.html"))
    options = parser.parse_args(argv)
    page = Page(
        "Training with pullback.torch",
        "PyTorch models that read by index, with plain indexing and with pullback.torch in its"
        " place: the same bits on every run.",
    )
    page.facts({"device": options.device, "torch": torch.__version__, "steps": str(options.steps)})
    checks = []
    for kind in (Words, Scales):
        problem = kind(options.device, options.quick)
        checks += shown(page, problem, trained(problem, options.steps))
    page.section("Checks")
    page.table(("claim", "found", "wanted", ""), checks)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(page.html(), encoding="utf-8")
    print(f"wrote {options.out}")
    return int(not all(c.passed for c in checks))


if __name__ == "__main__":
    sys.exit(main())
