"""`pullback demo`: fit a small model, check second derivatives and equal bits, draw a report."""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import pullback as pb
from pullback.cli import curvature, demo_page, digits, info
from pullback.cli.demo_page import Repeat, Story
from pullback.core import pytrees
from pullback.display.report import Check, below

__all__ = ["arguments", "run"]

STEPS, QUICK_STEPS = 600, 300
SAMPLE, QUICK_SAMPLE = 512, 128  # images in the loss whose curvature is looked at
REACHED = 0.95  # test accuracy


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument(
        "--out", type=Path, default=Path("report/demo.html"), help="where the report goes"
    )
    parser.add_argument("--steps", type=_positive, help=f"training steps (default {STEPS})")
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help="of the first weights, batches and directions (default 0)",
    )
    parser.add_argument("--quick", action="store_true", help="fewer steps, smaller checks")
    parser.add_argument("--device", default="cpu", help='where it runs: "cpu" (default) or "cuda"')


def _positive(text: str) -> int:
    """The number in `text`, for argparse."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


def run(options: argparse.Namespace) -> int:
    """Tell the story, write the report, and return 1 if a check failed, 2 if it can't be told."""
    started = time.perf_counter()
    info.run(options)
    if problem := _out_problem(options.out):
        print(f"demo: can't write the report: {problem}", file=sys.stderr)
        return 2
    try:
        with pb.device(options.device):
            return _told(options, started)
    except pb.DeviceError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 2


def _told(options: argparse.Namespace, started: float) -> int:
    """The exit status after the story on the default device."""
    try:
        data = digits.load()
    except pb.DeviceError:  # CuPy may be what can't be imported
        raise
    except ImportError:
        print(
            "demo: the digits come with scikit-learn, which is not installed here.\n"
            f"Install it with: {sys.executable} -m pip install scikit-learn",
            file=sys.stderr,
        )
        return 2
    story = _story(data, options)
    seconds = time.perf_counter() - started
    options.out.write_text(demo_page.page(story, seconds), encoding="utf-8")
    held = sum(c.passed for c in story.checks)
    print(f"\n{held} of {len(story.checks)} checks passed, {seconds:.1f} s")
    print(f"report: {options.out.resolve()}")
    return 0 if held == len(story.checks) else 1


def _out_problem(path: Path) -> str:
    """Why the report can't be written, found before the work is done; "" if it can."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return str(error)
    if path.is_dir():
        return f"{path} is a directory"
    return "" if os.access(path.parent, os.W_OK) else f"{path.parent} is not writable"


def _story(data: digits.Data, options: argparse.Namespace) -> Story:
    """Everything that is computed, with a check on each claim."""
    keys = pb.random.split(pb.random.key(options.seed), 4)
    steps = options.steps or (QUICK_STEPS if options.quick else STEPS)
    layers = "-".join(map(str, digits.LAYERS))
    print(f"\nfit a {layers} network to {len(data.y)} images of digits", flush=True)
    if options.device == "cpu":
        fit, repeats = _fits(data, steps, keys[0])
    else:
        fit, repeats = _fits_on(options.device, data, steps, keys[0])
    accuracy = fit.accuracies[-1]
    reached = Check("test accuracy", f"{accuracy:.4f}", f">= {REACHED}", accuracy >= REACHED)
    checks = _shown([reached])

    print("\nsecond derivatives, in float64, at the fitted parameters")
    sample = QUICK_SAMPLE if options.quick else SAMPLE
    params = pb.map_tree(lambda p: p.astype("float64"), fit.params)
    x, y = data.x[:sample].astype("float64"), data.y[:sample]
    direction = curvature.random_direction(params, keys[1])

    def f(p: Any) -> Any:
        return digits.loss(p, x, y)

    checks += _shown(curvature.product_checks(f, params, direction))
    checks += _shown([curvature.bias_check(params, x, y)])
    top = curvature.top_eigenvalue(f, params, direction)
    checks += _shown(top.checks)
    pixels = curvature.pixel_hessian(params, data)
    checks += _shown([pixels.check, curvature.order_check(keys[2], 2 if options.quick else 3)])

    print("\nthe same bits every time")
    others = "1 and 2 threads" if options.device == "cpu" else f"on {options.device} and the CPU"
    fits = _equal(f"parameters of repeated fits, {others}", [r.digest for r in repeats])
    checks += _shown([fits, *_index_checks(keys[3]), _threads_check(keys[3])])
    print("sha256 of all parameters:")
    for repeat in repeats:
        print(f"  {repeat.digest}  {repeat.name}")
    return Story(options.seed, data, fit, repeats, top, pixels, checks)


def _shown(checks: Sequence[Check]) -> list[Check]:
    """Print checks and hand them on."""
    for c in checks:
        mark = "ok    " if c.passed else "FAILED"
        print(f"  {mark}  {c.name:<56}  {c.measured}  ({c.bound})", flush=True)
    return list(checks)


# -- equal bits ------------------------------------------------------------------------------------


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Run the body with that many threads."""
    from pullback.runtime.cpu import native

    before = native.get_threads()
    native.set_threads(count)
    try:
        yield
    finally:
        native.set_threads(before)


def _digest(tree: Any) -> str:
    """The sha256 of the bytes of all arrays of a tree."""
    total = hashlib.sha256()
    for leaf in pytrees.leaves(tree):
        total.update(np.ascontiguousarray(leaf.numpy()).tobytes())
    return total.hexdigest()


def _repeat(data: digits.Data, steps: int, key: Any, name: str) -> tuple[digits.Fit, Repeat]:
    """A fit, and what is told about it."""
    started = time.perf_counter()
    fit = digits.train(data, steps, key, f"  {name}")
    return fit, Repeat(name, time.perf_counter() - started, _digest(fit.params))


def _fits(data: digits.Data, steps: int, key: Any) -> tuple[digits.Fit, list[Repeat]]:
    """The same fit with the threads of this machine, again, and with others."""
    from pullback.runtime.cpu import native

    usual = native.get_threads()
    counts = [usual, usual, *({1, 2} - {usual})]
    fits, repeats = [], []
    for i, count in enumerate(counts):
        threads = f"{count} thread{'s' if count > 1 else ''}"
        name = f"{('first run', 'second run', 'third run', 'fourth run')[i]}, {threads}"
        with _threads(count):
            fit, repeat = _repeat(data, steps, key, name)
        fits.append(fit)
        repeats.append(repeat)
    return fits[0], repeats


def _fits_on(
    device: str, data: digits.Data, steps: int, key: Any
) -> tuple[digits.Fit, list[Repeat]]:
    """The same fit on a device, again, and on the CPU."""
    fit, first = _repeat(data, steps, key, f"first run, {device}")
    _, second = _repeat(data, steps, key, f"second run, {device}")
    with pb.device("cpu"):
        _, third = _repeat(digits.load(), steps, key.cpu(), "third run, cpu")
    return fit, [first, second, third]


def _equal(name: str, digests: Sequence[str]) -> Check:
    """The check that all digests are the first."""
    same = sum(d == digests[0] for d in digests)
    return Check(name, f"{same} of {len(digests)} equal", "all", same == len(digests))


def _digests(work: Callable[[], Any], times: int) -> list[str]:
    """The digests of the results of `times` calls with each of several numbers of threads."""
    found = []
    for count in (1, 2, 3):
        with _threads(count):
            found += [_digest(work()) for _ in range(times)]
    return found


def _index_checks(key: Any) -> list[Check]:
    """The gradient of `x[rows]` where each row is read about a hundred times."""
    keys = pb.random.split(key, 3)
    x = pb.random.normal(keys[0], (500, 8))
    rows = pb.random.randint(keys[1], (50_000,), 0, 500)
    weights = pb.random.normal(keys[2], (50_000, 8))
    slope = pb.grad(lambda t: pb.sum(t[rows] * weights))
    exact = np.zeros((500, 8))
    np.add.at(exact, rows.numpy(), weights.numpy().astype(np.float64))
    error = float(np.abs(slope(x).numpy() - exact).max() / np.abs(exact).max())
    name = "gradient of x[rows], duplicates in rows"
    return [
        _equal(f"{name}, 1 to 3 threads", _digests(lambda: slope(x), times=4)),
        below("gradient of x[rows], float32, against exact sums", error, 1e-5),
    ]


def _threads_check(key: Any) -> Check:
    """The gradient of a product and a sum that are large enough for several threads."""
    x = pb.random.normal(key, (512, 512))
    slope = pb.grad(lambda t: pb.sum(pb.tanh(t @ t.T / 16) * t))
    name = "gradient through a 512 x 512 product, 1 to 3 threads"
    return _equal(name, _digests(lambda: slope(x), times=2))
