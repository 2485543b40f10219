"""`pullback bench gather`: cases, accuracy, bits, tables and pages."""

from __future__ import annotations

import contextlib
import io
import json
from importlib.util import find_spec

import numpy as np
import pytest

from benchmarks import gather_bench, turns
from benchmarks.gather_bench import digest
from benchmarks.gather_cases import CASES, Bar, Inputs, errors_of
from benchmarks.gather_page import Row, Stability, page, summary, tables
from benchmarks.gather_rivals import OURS, READING, Cuda, Eager
from benchmarks.machine import Machine
from benchmarks.turns import taking_turns
from pullback.cli import main


def test_cases_are_those_of_the_table():
    sizes = {n: (c.rows, c.width, c.count, c.cuda_count) for n, c in CASES.items()}
    assert sizes["few"] == sizes["few-sorted"] == sizes["few-equal"] == (20, 1, 4e6, 64e6)
    assert sizes["few-short"] == (20, 1, 1e6, 1e6) and sizes["hundreds"] == (200, 1, 16e6, 16e6)
    assert sizes["rows"] == (100_000, 64, 1e6, 1e6) and sizes["million"] == (1e6, 1, 16e6, 16e6)
    assert sizes["tokens"] == (50_000, 768, 32_768, 32_768)
    assert sizes["grid"] == (1_200_000, 1, 8e6, 8e6) and CASES["grid"].dtype == "complex64"
    assert [c.bar.ratio for c in CASES.values()] == [0.25] * 3 + [0.3] * 2 + [0.7] * 4


@pytest.mark.parametrize("name", CASES)
def test_inputs_are_in_range_and_the_same_every_time(name):
    first, second = (CASES[name].inputs(quick=True) for _ in range(2))
    assert np.array_equal(first.indices, second.indices)
    assert np.array_equal(first.updates, second.updates)
    assert first.indices.min() >= 0 and first.indices.max() < first.rows
    assert first.updates.dtype == CASES[name].dtype
    if CASES[name].order == "sorted":
        assert (np.diff(first.indices) >= 0).all()


def test_zipf_has_a_few_frequent_tokens():
    inputs = CASES["tokens"].inputs(quick=True)
    counts = np.bincount(inputs.indices, minlength=inputs.rows)
    assert counts.max() > 20 * counts.mean()


def inputs_of(updates: np.ndarray) -> Inputs:
    return Inputs(2, np.array([0, 1, 1]), updates)


def test_errors_are_in_ulps_of_the_sum_of_magnitudes():
    inputs = inputs_of(np.array([1, 8, -8], np.float32))
    ulp = float(np.spacing(np.float32(16)))
    found = errors_of(
        inputs, {"exact": np.array([1, 0], np.float32), "off": np.array([1, 2 * ulp], np.float32)}
    )
    assert found["exact"].ulp == 0 and found["off"].ulp == 2
    z = inputs_of(np.array([1j, 2, 2], np.complex64))
    assert errors_of(z, {"exact": np.array([1j, 4], np.complex64)})["exact"].ulp == 0


@pytest.mark.parametrize("name", ["few", "tokens", "grid"])
def test_ours_is_accurate_with_and_without_a_plan(name):
    inputs = CASES[name].inputs(quick=True)
    results = {}
    for form in OURS[:2]:
        contender = Eager(form, "cpu")
        results[form] = contender.host(contender.prepared(inputs)())
    assert all(e.ulp <= 1 for e in errors_of(inputs, results).values())


def test_turns_are_taken_and_the_slow_drop_out(monkeypatch):
    monkeypatch.setattr(turns, "PATIENCE", 0.0)
    monkeypatch.setattr(turns, "SHORT", 0.0)
    calls: list[str] = []
    works = {n: (lambda n=n: calls.append(n)) for n in "ab"}
    found = taking_turns(works, 10, dict.fromkeys("ab", lambda result: None))
    assert set(found) == {"a", "b"} and all(t > 0 for t in found.values())
    assert calls == ["a", "a", "b", "b"] * (1 + turns.LEAST)  # one turn finds how many calls fit


# -- tables ----------------------------------------------------------------------------------------


def row(ours: float, peer: float | None = 1.0, ulp: float = 0.5, bar: Bar | None = None) -> Row:
    cells = {OURS[0]: {"seconds": ours, "ulp": ulp, "relative": 0.0}}
    if peer is not None:
        cells["index_add_"] = {"seconds": peer, "ulp": 3.0, "relative": 0.0}
    return Row("few", "20 x 1", 10, cells, 0.1, bar or Bar(0.25))


def test_a_row_is_judged_by_every_bar():
    assert row(0.2).passes() and not row(0.3).passes()
    assert row(0.2, None).passes() is None
    assert not row(0.2, bar=Bar(0.25, floor=1.5)).passes()
    assert row(0.2).accurate()
    assert not row(0.2, ulp=5.0).accurate() and not row(0.2, ulp=3.5).accurate()
    failed = Row("few", "", 1, {OURS[0]: {"error": "boom"}}, 0.1, Bar(0.25))
    assert failed.passes() is False and "boom" in summary(failed)


def test_misses_show_everywhere():
    stable = [Stability("few", OURS[0], 4, ["aa", "bb"]), Stability("few", OURS[1], 4, ["aa"])]
    rows = [row(0.2), row(0.3)]
    text = tables(rows, stable)
    assert text.count("MISSED") == 2 and "2 patterns" in text
    assert "MISSED" in summary(rows[1]) and "MISSED" not in summary(rows[0])
    html = page(rows, stable, {"machine": "x"})
    assert "1 of 2 within their bars" in html and "verdict failed" in html


def test_digests_tell_bits_apart():
    assert digest(np.array([0.0])) != digest(np.array([-0.0]))


# -- the command -----------------------------------------------------------------------------------


@pytest.fixture
def quick_machine(monkeypatch):
    monkeypatch.setattr(gather_bench.machine, "measured", lambda threads: Machine(1e9, 1e9))


@pytest.mark.filterwarnings("ignore")
def test_the_command_writes_what_it_measures(quick_machine, threads, tmp_path):
    out = io.StringIO()
    files = ["--json", str(tmp_path / "a.json"), "--html", str(tmp_path / "a.html")]
    chosen = ["--only", "few", "--only", "tokens", "--quick", "--repeat", "3", "--stability", "2"]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        status = main(["bench", "gather", *chosen, *files])
    assert status == 0
    written = json.loads((tmp_path / "a.json").read_text())
    assert [r["name"] for r in written["rows"]] == ["few", "tokens"]
    assert all(len(s[3]) == 1 and s[2] == 6 for s in written["stability"])
    cells = [r["cells"] for r in written["rows"]]
    assert all(c[READING]["seconds"] > 0 and "ulp" not in c[READING] for c in cells)
    assert all("ulp" in c[name] for c in cells for name in OURS[:2])
    assert "same bits" in out.getvalue()
    assert "<svg" in (tmp_path / "a.html").read_text()


def test_a_case_of_another_suite_is_refused(capsys):
    assert main(["bench", "gather", "--only", "chain"]) == 2
    assert "few-sorted" in capsys.readouterr().out


@pytest.mark.skipif(find_spec("cupy") is not None, reason="CuPy is there")
def test_contenders_on_cuda_need_cupy():
    with pytest.raises(ImportError):
        Cuda(OURS[0], "cuda").prepared(CASES["few"].inputs("cpu", quick=True))
