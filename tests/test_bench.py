"""`pullback bench`: workloads agree across libraries, failures show, tables and pages are right."""

import argparse
import contextlib
import io
import json
import math
import os
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import command as bench
from benchmarks import libraries, memory_works, rivals, scores, transforms
from benchmarks.libraries import LIBRARIES, Pullback
from benchmarks.machine import Machine
from benchmarks.scores import Row
from benchmarks.workloads import WORKLOADS, leaves
from pullback.cli import bench as thin
from pullback.cli import main
from pullback.display.progress import Progress
from pullback.runtime.cpu import native


def outputs(library, name: str) -> list[np.ndarray]:
    arguments = library.prepared(name, WORKLOADS[name].arrays(quick=True))
    result = getattr(library, name)()(*arguments)
    library.wait(result)
    return [library.host(x) for x in leaves(result)]


@pytest.mark.parametrize("name", [n for n in WORKLOADS if LIBRARIES["numpy"].runs(n)])
def test_ours_agrees_with_derivatives_by_hand(ours, name):
    found = {"pullback": outputs(ours, name), "numpy": outputs(LIBRARIES["numpy"](1), name)}
    assert max(rivals.deviations(found).values()) < 1e-5


@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.filterwarnings("ignore")
def test_ours_agrees_with_torch(ours, name):
    pytest.importorskip("torch")
    found = {"pullback": outputs(ours, name), "torch": outputs(LIBRARIES["torch"](1), name)}
    assert max(rivals.deviations(found).values()) < 1e-4


class Eager(Pullback):
    """Ours without compiling anything."""

    def jit(self, f):
        return f

    def value_and_grad(self, f, loop=False):
        return self.pb.value_and_grad(f)

    def host(self, x):
        return x.detach().numpy()


@pytest.mark.parametrize("name", ["small_mlp", "pinn", "lstm", "three_body", "gmm"])
def test_compiled_agrees_with_eager(ours, name):
    found = {"jit": outputs(ours, name), "eager": outputs(Eager(1), name)}
    assert max(rivals.deviations(found).values()) < 1e-5


def test_full_sizes_are_those_of_the_table():
    assert WORKLOADS["chain"].arrays(quick=False)[0].shape == (1 << 24,)
    layers, x, _ = WORKLOADS["small_mlp"].arrays(quick=False)
    assert len(layers) == 8 and layers[0][0].shape == (64, 64) and x.shape == (32, 64)
    layers, points, _ = WORKLOADS["pinn"].arrays(quick=False)
    assert [w.shape for w, _ in layers] == [(2, 64), (64, 64), (64, 64), (64, 1)]
    assert points.shape == (4096, 2)
    assert WORKLOADS["lstm"].arrays(quick=False)[1].shape == (512, 32)
    assert len(WORKLOADS["three_body"].arrays(quick=False)[2]) == 1000
    assert WORKLOADS["gmm"].arrays(quick=False)[0]["lower"].shape == (100, 64, 64)


@pytest.mark.parametrize("name", WORKLOADS)
def test_inputs_are_float32_and_the_same_every_time(name):
    first, second = (leaves(WORKLOADS[name].arrays(quick=True)) for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
    assert {x.dtype for x in first} == {np.dtype(np.float32)}


# -- comparing -------------------------------------------------------------------------------------


def test_the_odd_one_out_is_found():
    right, wrong = [np.array([1.0, 4.0])], [np.array([1.0, 3.0])]
    found = rivals.deviations({"a": right, "b": right, "c": wrong})
    assert found == {"a": 0, "b": 0, "c": 0.25}


@pytest.mark.parametrize("bad", [np.array([math.nan, 1.0]), np.array([math.inf, 1.0]), np.ones(3)])
def test_a_result_that_is_not_finite_or_of_another_shape_blames_nobody_else(bad):
    good = [np.array([2.0, 1.0])]
    assert rivals.deviations({"a": good, "b": [bad], "c": good}) == {"a": 0, "b": math.inf, "c": 0}


def test_nothing_to_compare_is_no_error():
    assert rivals.deviations({}) == {}
    assert rivals.deviations({"a": [np.zeros(0)]}) == {"a": 0}


# -- tables ----------------------------------------------------------------------------------------


def row(ours: dict, **peers: dict) -> Row:
    return Row("chain", {"pullback": ours, **peers}, floor=0.001)


def cell(seconds: float, compile_seconds: float | None = 1.0, peak: int = 1 << 20) -> dict:
    return {"seconds": seconds, "compile_seconds": compile_seconds, "peak_bytes": peak}


def test_ratios_are_ours_over_the_best_peer():
    found = row(cell(1.0), torch=cell(4.0, None), jax=cell(2.0, 0.5))
    assert found.ratio("seconds") == 0.5 and found.passes("seconds")
    assert found.ratio("compile_seconds") == 2.0 and found.passes("compile_seconds") is False


def test_a_peer_that_failed_does_not_count():
    found = row(cell(1.0), torch={**cell(0.1), "error": "wrong result"}, jax=cell(4.0))
    assert found.ratio("seconds") == 0.25
    assert row(cell(1.0), jax={"error": "x"}).passes("seconds") is None


def test_our_failure_is_shown_and_counts_as_missed():
    failed = row({"error": "ValueError: nope"}, jax=cell(1.0))
    assert failed.passes("seconds") is False and failed.ratio("seconds") is None
    assert "FAILED" in scores.summary(failed) and "nope" in scores.summary(failed)
    text = scores.tables([failed], ["pullback", "jax"])
    assert "MISSED" in text and "failed: chain, pullback: ValueError: nope" in text
    page = scores.page([failed], ["pullback", "jax"], {})
    assert "0 of 1 within their bars" in page and "nope" in page


def test_tables_hold_every_number():
    text = scores.tables([row(cell(0.001), jax=cell(0.004))], ["pullback", "jax"])
    heads, line = text.splitlines()[:2]
    assert heads.split()[-5:] == ["pullback", "jax", "ratio", "bar", "floor"]
    assert line.split() == ["chain", "1", "4", "0.25", "<=", "0.5", "ok", "1"]


def test_the_floor_is_the_slower_of_moving_and_multiplying():
    machine = Machine(bandwidth=10.0, flops=100.0)
    assert machine.floor(20, 100) == 2.0 and machine.floor(10, 500) == 5.0


# -- processes -------------------------------------------------------------------------------------

FAST = {"quick": True, "threads": 1, "repeat": 2, "limit": 120.0}


def compared(name: str, names: list[str], **options) -> dict:
    settings = argparse.Namespace(**{**FAST, **options})
    with Progress(len(names) + settings.repeat, "test", io.StringIO()) as progress:
        return rivals.compared(WORKLOADS[name], names, settings, progress)


def test_a_run_measures_time_compilation_and_memory():
    cells = compared("chain", ["pullback", "numpy"])
    assert all("error" not in c for c in cells.values()), cells
    assert all(c["seconds"] > 0 and c["peak_bytes"] >= 0 for c in cells.values())
    assert cells["pullback"]["compile_seconds"] > 0
    assert cells["numpy"]["compile_seconds"] is None
    assert cells["pullback"]["bytes"] == 2 * 4 * (1 << 12) + 4


def test_a_workload_that_does_not_apply_has_no_cell():
    assert set(compared("gmm", ["numpy"])) == set()


def test_a_process_that_dies_is_a_failure(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    found = compared("chain", ["pullback"])
    assert "ended with exit status 1" in found["pullback"]["error"]


def test_a_process_that_is_too_slow_is_stopped():
    found = compared("chain", ["pullback"], limit=0.01)
    assert "no result within" in found["pullback"]["error"]


def test_a_process_that_dies_between_turns_is_a_failure(tmp_path):
    process = rivals.Process("numpy", WORKLOADS["chain"], argparse.Namespace(**FAST), tmp_path)
    process.answer(120)
    assert process.turn(120)["seconds"] > 0
    os.kill(process._process.pid, signal.SIGKILL)
    with pytest.raises(rivals.Gone, match="SIGKILL"):
        process.turn(120)
    process.stop()


def test_a_wrong_result_is_not_timed(monkeypatch):
    monkeypatch.setattr(rivals, "deviations", lambda results: {"numpy": 0.5})
    assert "wrong result" in compared("chain", ["numpy"])["numpy"]["error"]


# -- the command -----------------------------------------------------------------------------------


def command(*argv: object) -> tuple[int, str]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        return main(["bench", *[str(a) for a in argv]]), out.getvalue()


@pytest.fixture
def alone(monkeypatch):
    """No peers but NumPy, and a machine that need not be measured."""
    monkeypatch.setattr(libraries, "find_spec", lambda n: n if n in ("pullback", "numpy") else None)
    monkeypatch.setattr(bench.machine, "measured", lambda threads: Machine(1e10, 1e11))


def test_the_command_writes_table_json_and_page(alone, tmp_path):
    numbers, page = tmp_path / "new" / "b.json", tmp_path / "b.html"
    argv = ["jit", "--quick", "--repeat", "1", "--threads", "1", "--only", "chain"]
    status, out = command(*argv, "--json", numbers, "--html", page)
    assert status == 0, out
    assert "torch is left out: torch is not installed" in out
    assert "torch.compile is left out: torch" in out and "jax is left out: jax" in out
    assert "chain: time of a call" in out and "compile time, s" in out
    found = json.loads(numbers.read_text())
    assert set(found["left_out"]) == {"torch", "torch.compile", "jax"}
    (record,) = found["rows"]
    assert record["workload"] == "chain" and record["ratios"]["seconds"] > 0
    assert "<svg" in page.read_text() and "<script" not in page.read_text()
    assert "Who was left out" in page.read_text()


def test_torch_compile_is_left_out_without_a_compiler(monkeypatch):
    lacks = LIBRARIES["torch.compile"].lacks
    monkeypatch.setattr(libraries, "find_spec", lambda name: name)
    monkeypatch.setenv("CXX", "")
    monkeypatch.setattr(libraries, "which", lambda name: f"/usr/bin/{name}")
    assert lacks() == ""
    monkeypatch.setattr(libraries, "which", lambda name: None)
    assert "C++ compiler" in lacks()
    monkeypatch.setattr(libraries, "find_spec", lambda name: None)
    assert "torch is not installed" in lacks()


def test_memory_that_a_library_keeps_between_calls_is_released_before_a_call(ours):
    x = ours.array(np.ones(1 << 20, np.float32))
    kept = (x + 1).shape
    assert native.memory()["cached"] >= 4 << 20, kept
    ours.release()
    assert native.memory()["cached"] == 0


def test_the_command_asks_only_the_peers_it_is_told_to(alone, monkeypatch):
    asked = []
    monkeypatch.setattr(
        bench, "compared", lambda w, names, *_: asked.append(names) or {"pullback": {}}
    )
    status, out = command("jit", "--quick", "--only", "chain", "--peer", "numpy", "--peer", "jax")
    assert status == 0 and asked == [["pullback", "numpy"]]
    assert "jax is left out" in out and "torch" not in out


def test_the_command_fails_if_ours_fails(alone, monkeypatch):
    monkeypatch.setattr(bench, "compared", lambda *_: {"pullback": {"error": "boom"}})
    status, out = command("jit", "--quick", "--only", "chain")
    assert status == 1 and "chain: FAILED, boom" in out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("fly",), "invalid choice"),
        (("jit", "--only", "fly"), "invalid choice"),
        (("jit", "--repeat", "0"), "at least 1"),
    ],
)
def test_bad_arguments_are_refused(argv, message, capsys):
    with pytest.raises(SystemExit) as error:
        main(["bench", *argv])
    assert error.value.code == 2
    assert message in capsys.readouterr().err


def test_an_installed_package_says_where_the_workloads_are(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(thin, "__file__", str(tmp_path / "lib" / "pullback" / "cli" / "bench.py"))
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "jit"]) == 2
    assert "Clone the\nrepository" in capsys.readouterr().err


def test_a_checkout_that_one_stands_in_is_found(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(thin, "__file__", str(tmp_path / "lib" / "pullback" / "cli" / "bench.py"))
    monkeypatch.chdir(Path(bench.__file__).parents[1])
    with pytest.raises(SystemExit):
        main(["bench", "--help"])
    assert "--stability" in capsys.readouterr().out


@pytest.mark.parametrize("position", range(len(transforms.WORKS)))
def test_workloads_of_transforms_give_numbers(position: int) -> None:
    found = transforms.works_of(transforms.WORKS[position], {})["pullback"]()
    for x in leaves(found):
        assert np.isfinite(x.numpy()).all()


@pytest.mark.parametrize("name", memory_works.WORKS)
def test_networks_of_the_memory_suite_stay_within_their_budgets(name: str) -> None:
    work = memory_works.WORKS[name]._replace(layers=8)
    batch = max(1, work.batch // 8)
    free = memory_works.ready("pullback", work, "free", batch)
    less = memory_works.ready("pullback", work, "80%", batch)
    marked = memory_works.ready("pullback", work, "checkpoint 2", batch)
    assert free.planned is not None
    assert less.planned is not None
    assert less.planned <= 0.8 * free.planned
    values = [leaves(r.run())[0].item() for r in (free, less, marked)]
    assert values[0] == values[1] == pytest.approx(values[2], rel=1e-5)
