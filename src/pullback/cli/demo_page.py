"""The report of `pullback demo`: what its page shows, in order."""

from __future__ import annotations

import os
import platform
import time
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

import pullback as pb
from pullback.cli import info
from pullback.cli.curvature import PixelHessian, TopEigenvalue
from pullback.cli.digits import LAYERS, Data, Fit, scores
from pullback.display import drawing
from pullback.display.drawing import Series
from pullback.display.report import Check, Page

__all__ = ["Repeat", "Story", "page"]


class Repeat(NamedTuple):
    """One of several runs that should end with the same bits."""

    name: str
    seconds: float
    digest: str


class Story(NamedTuple):
    """All that the page tells."""

    seed: int
    data: Data
    fit: Fit
    repeats: list[Repeat]
    top: TopEigenvalue
    pixels: PixelHessian
    checks: list[Check]


def page(story: Story, seconds: float) -> str:
    """The report as HTML."""
    result = Page(
        "Pullback demo",
        "A small network fitted to handwritten digits with differentiable arrays, its second"
        " derivatives, and the same bits on every run. Each number below was computed in the run"
        " that wrote this page.",
    )
    held = sum(c.passed for c in story.checks)
    result.verdict(f"{held} of {len(story.checks)} checks passed", held == len(story.checks))
    first = story.repeats[0]
    result.facts(
        {
            "test accuracy": f"{100 * story.fit.accuracies[-1]:.1f} %",
            "parameters": f"{sum(n * m + m for n, m in pairwise(LAYERS)):,}",
            "training steps": f"{len(story.fit.losses)}",
            "steps per second": f"{len(story.fit.losses) / first.seconds:.0f}",
            "top eigenvalue": f"{story.top.values[-1]:.4f}",
            "whole demo": f"{seconds:.1f} s",
        }
    )
    _training(result, story)
    _network(result, story)
    _second_derivatives(result, story)
    _bits(result, story)
    result.section("Checks", "The command ends with status 1 if one of them fails.")
    result.table(("check", "measured", "asked for", ""), story.checks)
    _environment(result)
    return result.html()


def _smooth(values: list[float], width: int = 15) -> np.ndarray:
    """Running means, shorter at the start."""
    sums = np.cumsum([0.0, *values])
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(ends - width, 0)
    return (sums[ends] - sums[starts]) / (ends - starts)


def _training(result: Page, story: Story) -> None:
    fit = story.fit
    steps = range(1, len(fit.losses) + 1)
    losses = drawing.curves(
        [
            Series("one batch", steps, fit.losses, "a faint"),
            Series("batches, running mean", steps, _smooth(fit.losses).tolist(), "a"),
            Series("test images", fit.watched, fit.test_losses, "b"),
        ],
        "step", "cross-entropy", log_y=True,
    )  # fmt: skip
    accuracy = drawing.curves(
        [Series("test images", fit.watched, fit.accuracies, "b")], "step", "test accuracy"
    )
    result.section(
        "Training",
        f"{len(story.data.y)} images to learn from, {len(story.data.test_y)} to test with;"
        f" {'-'.join(map(str, LAYERS))} network with tanh, gradient descent with momentum,"
        f" float32, seed {story.seed}.",
    )
    result.figures(
        ("Loss", losses, "Logarithmic scale."),
        ("Accuracy", accuracy, f"Ends at {fit.accuracies[-1]:.4f}."),
    )


def _network(result: Page, story: Story) -> None:
    labels = story.data.test_y.numpy()
    guesses = scores(story.fit.params, story.data.test_x).argmax(axis=1).numpy()
    images = story.data.test_x.numpy().reshape(-1, 8, 8)
    wrong = np.flatnonzero(guesses != labels)[:12]
    right = np.flatnonzero(guesses == labels)[: 50 - len(wrong)]
    shown = np.concatenate([wrong, right])
    grid = drawing.tiles(
        [drawing.image(drawing.ink(images[i]), f"a {labels[i]}", "ink") for i in shown],
        [f"{labels[i]}→{guesses[i]}" if i in wrong else f"{guesses[i]}" for i in shown],
        [i in wrong for i in shown],
    )
    weights = story.fit.params[0][0].numpy().T.reshape(-1, 8, 8)
    limit = float(np.abs(weights).max())
    filters = drawing.tiles(
        [
            drawing.image(drawing.diverging(w, limit), f"weights of unit {i}")
            for i, w in enumerate(weights)
        ]
    )
    shares = [float((guesses[labels == d] == d).mean()) for d in range(10)]
    misses = len(np.flatnonzero(guesses != labels))
    result.section("What the network learned")
    result.figures(
        ("Test images and what was read", grid,
         f"Framed: read wrong (9→5 is a 9 read as a 5), {misses} of {len(labels)} in all."),
        ("First-layer weights", filters,
         "One image per hidden unit: orange adds, blue takes away, strength is the size."),
        ("Accuracy by digit", drawing.bars(
            [str(d) for d in range(10)], shares, "digit", "share read right"), ""),
        ("What speaks for a digit", _evidence(story),
         "The gradient of each digit's score by the pixels, mean over the test images: ink on"
         " orange speaks for the digit, ink on blue against it."),
    )  # fmt: skip


def _evidence(story: Story) -> str:
    """One image per digit: the mean gradient of its score by the pixels."""
    x = story.data.test_x
    _, pull = pb.vjp(lambda pixels: pb.mean(scores(story.fit.params, pixels), axis=0), x)
    mean = [pb.sum(pull(e)[0], axis=0).numpy().reshape(8, 8) for e in pb.eye(10)]
    limit = float(np.abs(mean).max())
    images = [drawing.image(drawing.diverging(m, limit), f"for a {d}") for d, m in enumerate(mean)]
    return drawing.tiles(images, [str(d) for d in range(10)], size="large")


def _pixels(story: Story) -> tuple[str, str, str]:
    """The least certain image, its gradient and its Hessian."""
    p = story.pixels
    image = story.data.test_x.numpy()[p.position].reshape(8, 8)
    label = int(story.data.test_y[p.position])
    gradient = p.gradient.reshape(8, 8)
    slope = drawing.image(
        drawing.diverging(gradient, float(np.abs(gradient).max())), "gradient by pixels", "framed"
    )
    left = (
        f'<h4>the image</h4><div class="framed">'
        f"{drawing.image(drawing.ink(image), f'a {label}', 'ink')}</div>"
        f"<h4>gradient</h4>{slope}"
    )
    right = f"<h4>Hessian, 64 x 64</h4>{drawing.heat_map(p.hessian, 'Hessian by pixels')}"
    return (
        "Derivatives by the pixels of one image",
        f'<div class="side"><div>{left}</div><div>{right}</div></div>',
        f"The {label} that the network is least sure of: its best guess has probability"
        f" {p.probability:.2f}. Every row of the Hessian is one forward-over-reverse product.",
    )


def _second_derivatives(result: Page, story: Story) -> None:
    top = story.top
    steps = range(1, len(top.values) + 1)
    value = drawing.curves([Series("", steps, top.values, "a")], "products H v", "eigenvalue")
    residual = drawing.curves(
        [Series("", steps, top.residuals, "c")], "products H v", "|H v - c v| / c", log_y=True
    )
    valley = drawing.curves(
        [
            Series("loss", top.distances, top.along, "a"),
            Series("parabola from slope and eigenvalue", top.distances, top.parabola, "b dashed"),
        ],
        "distance along the eigenvector", "loss",
    )  # fmt: skip
    result.section(
        "Second derivatives",
        "The Hessian of the loss by all parameters is never formed: power iteration needs only"
        " its products with vectors, by forward over reverse mode, in float64.",
    )
    result.figures(
        ("Largest eigenvalue", value, f"{top.values[-1]:.8f} after {len(top.values)} products."),
        ("Convergence", residual, "A straight line: the error shrinks by a constant factor."),
        ("The steepest valley", valley,
         "The loss along the eigenvector, and what its second derivative says about it."),
        _pixels(story),
    )  # fmt: skip


def _bits(result: Page, story: Story) -> None:
    result.section(
        "The same bits every time",
        "The sha256 of all parameters after each run; reductions are fixed trees, and sums over"
        " duplicate indices have a fixed order, whatever the number of threads.",
    )
    result.table(
        ("run", "seconds", "sha256"),
        [(r.name, f"{r.seconds:.2f}", f"`{r.digest}`") for r in story.repeats],
    )


def _processor() -> str:
    """The processor's own name where the system tells it."""
    listing = Path("/proc/cpuinfo")
    if listing.exists():
        for line in listing.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _environment(result: Page) -> None:
    packages = ("numpy", "llvmlite", "scikit-learn")
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in packages)
    python = f"{platform.python_implementation()} {platform.python_version()}"
    rows = [
        ("versions", f"pullback {pb.__version__}, {versions}, {python}"),
        ("machine", f"{_processor()}, {os.cpu_count()} cores, {platform.platform()}"),
        *(("device", line) for line in info.device_lines()),
        ("written", time.strftime("%Y-%m-%d %H:%M:%S %Z")),
    ]
    result.section("Where this ran")
    result.table((), rows)
