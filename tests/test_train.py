"""`pb.train`: batches that can be gone on with, logs and checkpoints that survive, a clean stop."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback import train

KEY = pb.random.key(3)


def rows(batches: Any) -> list[list[float]]:
    return [[float(v) for v in np.asarray(b.numpy()).ravel()] for b in batches]


@pytest.mark.parametrize("host", [False, True])
@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_batches_are_those_of_the_key_wherever_they_start(host: bool, prefetch: int) -> None:
    data: Any = np.arange(10.0) if host else pb.arange(10.0)
    whole = rows(train.batches(data, 3, key=KEY, epochs=3, prefetch=prefetch))
    assert len(whole) == 9
    for epoch in range(3):
        seen = sorted(v for batch in whole[3 * epoch : 3 * epoch + 3] for v in batch)
        assert len(set(seen)) == 9
    assert whole[:3] != whole[3:6]
    for start in range(9):
        again = rows(train.batches(data, 3, key=KEY, epochs=3, start=start, prefetch=prefetch))
        assert again == whole[start:]
    other = rows(train.batches(data, 3, key=pb.random.key(4), epochs=3, prefetch=prefetch))
    assert other != whole


def test_batches_without_a_key_are_in_order_and_may_end_short() -> None:
    x = pb.arange(7)
    assert rows(train.batches(x, 3)) == [[0, 1, 2], [3, 4, 5]]
    assert rows(train.batches(x, 3, drop_last=False)) == [[0, 1, 2], [3, 4, 5], [6]]
    endless = train.batches(x, 7, epochs=None)
    assert [rows([next(endless)])[0] for _ in range(3)] == [[0, 1, 2, 3, 4, 5, 6]] * 3


def test_batches_keep_the_tree_and_the_pairs() -> None:
    data = {"x": np.arange(8), "y": pb.arange(8) * 2}
    for b in train.batches(data, 4, key=KEY):
        assert bool(pb.all(b["x"] * 2 == b["y"]))


def test_an_error_of_the_reading_thread_is_raised() -> None:
    class Broken(np.ndarray):
        def __getitem__(self, key: Any) -> Any:
            raise OSError("the disk is gone")

    data = np.arange(8.0).view(Broken)
    with pytest.raises(OSError, match="the disk is gone"):
        list(train.batches(data, 2))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: train.batches((pb.ones(3), pb.ones(4)), 1), "one number of rows"),
        (lambda: train.batches(pb.ones(()), 1), "one number of rows"),
        (lambda: train.batches(pb.ones(3), 0), "size must be positive"),
        (lambda: train.batches(pb.ones(3), 4), "does not fit in 3 rows"),
    ],
)
def test_batches_refuse_what_does_not_fit(call: Any, words: str) -> None:
    with pytest.raises(pb.ShapeError, match=words):
        call()


def test_checkpoints_pass_over_a_damaged_file(tmp_path: Path) -> None:
    kept = train.Checkpoints(tmp_path, keep=2)
    assert kept.resume({"w": pb.zeros(1)})[0] == 0
    for step in (5, 7, 9):
        kept.save(step, {"w": pb.ones(1) * step})
    assert kept.steps() == [7, 9]
    damaged = kept.path(9).read_bytes()[:-1]
    kept.path(9).write_bytes(damaged)
    step, tree = kept.resume({"w": pb.zeros(1)})
    assert step == 8 and float(tree["w"][0]) == 7
    kept.path(7).write_bytes(damaged)
    with pytest.raises(pb.FileFormatError, match="step-000000009"):
        kept.resume({"w": pb.zeros(1)})


def test_a_log_goes_on_where_it_was_left(tmp_path: Path) -> None:
    with train.Log(tmp_path) as log:
        for step in range(4):
            log.write(step, loss=4.0 - step)
    with open(tmp_path / "log.csv", "a") as file:
        file.write("4,9,0.")  # a line that was cut off
    assert [row["loss"] for row in train.Log(tmp_path).rows] == [4.0, 3.0, 2.0, 1.0]
    with train.Log(tmp_path) as log:
        log.write(2, loss=0.5, extra=1)
    assert "refresh" not in (tmp_path / "report.html").read_text()
    lines = (tmp_path / "log.csv").read_text().splitlines()
    assert lines[0] == "step,seconds,loss,extra"
    assert [line.split(",")[0] for line in lines[1:]] == ["0", "1", "2"]
    assert lines[3].endswith(",0.5,1.0")
    page = (tmp_path / "report.html").read_text()
    assert page.count("<svg") >= 2 and "extra" in page
    assert sorted(os.listdir(tmp_path)) == ["log.csv", "report.html"]


def test_a_log_that_is_open_reloads_and_its_clock_goes_on_from_the_last_row(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("step,seconds,loss\n0,10,1\n1,20,1\n2,30,1\n")
    log = train.Log(tmp_path, redraw=0.0)
    log.write(2, loss=0.5)
    assert 20 <= log.rows[-1]["seconds"] < 25
    page = (tmp_path / "report.html").read_text()
    assert '<meta http-equiv="refresh" content="2">' in page and "so far" in page
    log = train.Log(tmp_path)
    log.write(0, loss=0.5)
    assert [row["step"] for row in log.rows] == [0] and log.rows[0]["seconds"] < 5


def test_an_interrupt_is_noted_first_and_raised_then() -> None:
    before = signal.getsignal(signal.SIGINT)
    with train.Interrupt() as interrupt:
        signal.raise_signal(signal.SIGINT)
        assert interrupt.requested
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("maximize", [False, True])
def test_early_stopping_counts_what_does_not_improve(maximize: bool) -> None:
    sign = -1 if maximize else 1
    stop = train.EarlyStopping(2, min_delta=0.5, maximize=maximize)
    values = [5.0, 4.8, 4.0, float("nan"), 3.6]
    assert [stop.update(sign * v) for v in values] == [False, False, False, False, True]
    assert stop.best == sign * 4.0


def test_computation_in_bfloat16_gives_gradients_in_float32() -> None:
    net = pb.nn.Linear(3, 2, key=KEY)
    x = pb.random.normal(KEY, (5, 3))
    seen = []

    def loss(net: Any, x: Any) -> Any:
        seen.append((net.weight.dtype, x.dtype))
        return pb.mean(net(x) ** 2)

    value, gradient = pb.value_and_grad(train.computed_in("bfloat16", loss))(net, x)
    assert seen == [(pb.bfloat16, pb.bfloat16)]
    assert value.dtype == gradient.weight.dtype == pb.float32
    exact = pb.grad(loss)(net, x)
    assert float(pb.max(pb.abs(gradient.weight - exact.weight))) < 0.05


@pytest.mark.parametrize("jitted", [False, True])
def test_a_scaled_loss_keeps_small_gradients_and_leaves_out_what_overflows(jitted: bool) -> None:
    scaling = train.LossScale(initial=2.0**15, growth_interval=2)
    derive = scaling.value_and_grad(lambda w, x: pb.sum(w * x), has_aux=False)
    derive = pb.jit(derive) if jitted else derive
    w = pb.ones(2)
    tiny = pb.tensor([1e-9, 1e-7])
    half = train.computed_in("float16", lambda w, x: pb.sum(w * 1e-4 * x * 1e-2))
    assert float(pb.grad(half)(w, pb.ones(2))[0]) == pytest.approx(1e-6, rel=0.1)
    state = scaling.init()
    value, gradient, finite, state = derive(state, w, tiny)
    assert bool(finite) and float(value) == pytest.approx(1.01e-7, rel=1e-3)
    np.testing.assert_allclose(gradient.numpy(), [1e-9, 1e-7], rtol=1e-6)
    _, _, finite, state = derive(state, w, tiny)
    assert float(state["scale"]) == 2.0**16 and int(state["finite_steps"]) == 0
    _, gradient, finite, state = derive(state, w, pb.tensor([1e38, 1.0]))
    assert not bool(finite) and float(state["scale"]) == 2.0**15
    kept = scaling.chosen(finite, {"w": w - gradient}, {"w": w})
    assert kept["w"].tolist() == [1.0, 1.0]


def test_an_average_of_parameters_is_corrected_for_its_start() -> None:
    ema = pb.optim.EMA(decay=0.9)
    net = pb.nn.BatchNorm1d(2)
    state = ema.init(net)
    weights = [1.0, 3.0, 2.0]
    for w in weights:
        net.weight = pb.ones(2) * w
        net.running_mean = pb.ones(2) * w
        state = ema.step(net, state)
    shares = [0.1 * 0.9**k for k in (2, 1, 0)]
    expected = sum(s * w for s, w in zip(shares, weights, strict=True)) / sum(shares)
    average = ema.params(state)
    assert float(average.weight[0]) == pytest.approx(expected)
    assert float(average.running_mean[0]) == 2.0  # data: the last one


RUN = """
    import sys, hashlib, time
    import pullback as pb
    from pullback.core import pytrees
    folder, steps, nap = sys.argv[1], 30, float(sys.argv[2])
    key = pb.random.key(0)
    net = pb.nn.Sequential(
        pb.nn.Linear(3, 8, key=key), pb.nn.BatchNorm1d(8), pb.nn.Dropout(0.2),
        pb.nn.Linear(8, 1, key=key),
    )
    opt = pb.optim.Adam(lr=0.01)
    x = pb.random.normal(pb.random.key(1), (40, 3))

    def loss(net, x, key):
        return pb.mean((net(x, training=True, key=key) - x[:, :1]) ** 2), net

    @pb.jit
    def step(net, state, x, key):
        (value, moved), gradient = pb.value_and_grad(loss, has_aux=True)(net, x, key)
        net, state = opt.step(moved, gradient, state)
        return net, state, value

    kept = pb.train.Checkpoints(folder)
    first, tree = kept.resume({"net": net, "opt": opt.init(net)})
    net, state = tree["net"], tree["opt"]
    data = pb.train.batches(x, 8, key=pb.random.key(2), epochs=None, start=first)
    for n in range(first, steps):
        net, state, value = step(net, state, next(data), pb.random.fold_in(key, n))
        kept.save(n, {"net": net, "opt": state})
        print(n, flush=True)
        time.sleep(nap)
    digest = hashlib.sha256()
    for leaf in pytrees.leaves((net, state)):
        digest.update(leaf.numpy().tobytes())
    print(digest.hexdigest())
"""


def _started(folder: Path, nap: float, program: str = RUN) -> subprocess.Popen:
    source = str(Path(pb.__file__).parents[1])
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program), str(folder), str(nap)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": source},
    )


KILLS = 30 if os.environ.get("PULLBACK_FULL") else 3


def test_a_run_that_is_killed_at_random_steps_ends_with_the_same_bits(tmp_path: Path) -> None:
    whole = _started(tmp_path / "whole", 0.0).communicate()[0].split()[-1]
    assert len(whole) == len(hashlib.sha256().hexdigest())
    draw = random.Random()  # other steps on every run; a failure names them
    done, killed, begun = -1, [], 0
    for _ in range(KILLS):
        step = draw.randint(done + 1, min(done + 12, 28))
        run = _started(tmp_path / "killed", 0.02)
        assert run.stdout is not None
        for line in run.stdout:
            done = int(line)
            begun += 1
            if done >= step:
                break
        time.sleep(draw.uniform(0.0, 0.03))  # anywhere in a step, or while a checkpoint is written
        run.kill()
        run.communicate()
        killed.append(step)
        if done >= 28:
            break
    out = _started(tmp_path / "killed", 0.0).communicate()[0].split()
    assert out[-1] == whole, f"killed at {killed}"
    assert begun >= len(killed)
    if len(out) > 1:  # it went on, rather than began anew
        assert int(out[0]) >= killed[-1]


INTERRUPTED = RUN.replace(
    "for n in range(first, steps):",
    """interrupt = pb.train.Interrupt().__enter__()
    log = pb.train.Log(folder)
    for n in range(first, steps):
        if interrupt.requested:
            print("stopped", n, flush=True)
            sys.exit(0)""",
).replace("print(n, flush=True)", "log.write(n, loss=value); print(n, flush=True)")


def test_ctrl_c_saves_and_stops_and_the_run_goes_on(tmp_path: Path) -> None:
    whole = _started(tmp_path / "whole", 0.0).communicate()[0].split()[-1]
    run = _started(tmp_path / "stopped", 0.02, INTERRUPTED)
    assert run.stdout is not None
    for line in run.stdout:
        if int(line) >= 7:
            run.send_signal(signal.SIGINT)
            break
    rest = run.communicate()[0].split()
    assert run.returncode == 0 and rest[-2] == "stopped"
    step = int(rest[-1])
    assert 8 <= step < 29
    assert train.Checkpoints(tmp_path / "stopped").steps()[-1] == step - 1
    assert [row["step"] for row in train.Log(tmp_path / "stopped").rows] == list(range(step))
    out = _started(tmp_path / "stopped", 0.0, INTERRUPTED).communicate()[0].split()
    assert int(out[0]) == step and out[-1] == whole
    assert [row["step"] for row in train.Log(tmp_path / "stopped").rows] == list(range(30))
