"""No tuning constant decides a bit: all of them are changed at random, and every result stays."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
EVERY = "60"  # of so many operations, the samples of one are run


def recorded(seed: int, folder: Path) -> tuple[dict[str, str], dict[str, list[str]]]:
    """The bits of all results by name, and the programs that made them."""
    command = [sys.executable, str(FOLDER / "altered.py"), str(seed), str(folder), EVERY]
    environment = {
        **os.environ,
        "PYTHONPATH": str(FOLDER.parents[1] / "src"),
        "PYTHONHASHSEED": "0",
        "PULLBACK_NUM_THREADS": "2",
    }
    subprocess.run(command, check=True, env=environment)
    with gzip.open(folder / "cases.json.gz", "rt") as stream:
        cases = json.load(stream)
    bits = {name: case["bits"] for name, case in cases.items()}
    bits |= json.loads((folder / "large.json").read_text())
    return bits, {name: case["programs"] for name, case in cases.items()}


def test_tuning_decides_no_bit(tmp_path: Path) -> None:
    bits, programs = recorded(0, tmp_path / "as they are")
    for seed in (1, 2):
        changed_bits, changed_programs = recorded(seed, tmp_path / f"changed {seed}")
        assert changed_bits == bits
        assert sum(changed_programs[name] != p for name, p in programs.items()) > 20
