"""`pullback bench cores`: every workload at small sizes, in all libraries, with the same bits."""

from __future__ import annotations

import json
import os
from pathlib import Path

from benchmarks import cores
from pullback.cli import main


def test_rows_of_two_workloads(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    options = ["bench", "cores", "--quick", "--repeat", "2", "--peer", "torch", "--json", str(file)]
    assert main([*options, "--only", "matmul_256", "--only", "narrow_mlp"]) == 0
    rows = json.loads(file.read_text())["rows"]
    assert {r["workload"] for r in rows} == {"matmul_256", "narrow_mlp"}
    assert not [k for r in rows for k in r if k.endswith(" error")]
    for name in ("matmul_256", "narrow_mlp"):
        assert len({r["bits"] for r in rows if r["workload"] == name}) == 1


def test_processors_are_those_of_this_process() -> None:
    assert sorted(cores.processors()) == sorted(os.sched_getaffinity(0))
