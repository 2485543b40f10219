"""Checks and times gather and scatter on an NVIDIA GPU, beside PyTorch and JAX.

    PYTHONPATH=src python tools/cuda_scatter.py [--quick] [--only CASE] [--steps] [--part times]

First every strategy on every dtype, index dtype and pattern against NumPy in float64, exact sums
bit for bit; then repeated runs, bit for bit; then errors beside those of the peers; last the times,
with the floor (bytes that have to move, at the speed of a copy). `--steps` adds the time of every
launch. Full numbers go to files in $OUT if OUT is set. The exit status is 1 if a check
failed. Needs CuPy; PyTorch and JAX are left out where they are missing.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

from cuda_scatter_checks import checks_and_errors
from cuda_scatter_data import TIMED, attempt, watched, write
from cuda_scatter_times import copy_bandwidth, report, time_case


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer checks and repetitions")
    parser.add_argument("--only", default="", help="timed cases whose name contains this")
    parser.add_argument("--steps", action="store_true", help="times of single launches")
    parser.add_argument("--part", choices=("all", "checks", "times"), default="all")
    options = parser.parse_args()
    if options.part == "checks":
        return checks_and_errors(options.quick)
    start, status = time.monotonic(), 0
    if options.part == "all":
        command = [sys.executable, __file__, "--part", "checks"]
        status = subprocess.run(command + ["--quick"] * options.quick).returncode
    bandwidth = copy_bandwidth()
    print(f"copy: {bandwidth / 1e12:.2f} TB/s", flush=True)
    rows = []
    for setup in TIMED:
        if options.only not in setup.name:
            continue
        with watched(setup.name):
            row = attempt(time_case, setup, bandwidth, options.quick, options.steps)
        if isinstance(row, str):
            status = 1
            print(f"FAILED {setup.name}: {row}", flush=True)
        else:
            rows.append(row)
    report(rows)
    print(f"{time.monotonic() - start:.0f} s")
    write("cuda_scatter.json", {"bandwidth": bandwidth, "times": rows})
    return status


if __name__ == "__main__":
    sys.exit(main())
