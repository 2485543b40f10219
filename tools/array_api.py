"""Run the test suite of the Array API standard (github.com/data-apis/array-api-tests) and write its
section of docs/conformance.md.

The argument is a checkout of the suite, with its submodule, and what it needs must be installed
(pytest, hypothesis, ndindex, pytest-json-report). Each file is a run of its own.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import sections

ROOT = Path(__file__).parents[1]
STANDARD = "2025.12"
TITLE = "## The test suite of the Array API standard"


class Outcome(NamedTuple):
    """What a file of the suite said."""

    file: str
    passed: int
    failed: list[str]
    skipped: dict[str, int]  # by reason


def commit(checkout: Path) -> str:
    """The commit of a checkout, with its day."""
    log = ["git", "-C", str(checkout), "log", "-1", "--format=%h of %cs", "--abbrev=10"]
    return subprocess.run(log, capture_output=True, text=True, check=True).stdout.strip()


def run(suite: Path, file: Path, examples: int, without: list[str]) -> Outcome:
    """Run one file."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider"),
            *("--disable-deadline", "--max-examples", str(examples), f"--junitxml={report}"),
            str(file.relative_to(suite)),
            *(["--disable-extension", *without] if without else []),
        ]
        paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
        chosen = {
            "ARRAY_API_TESTS_MODULE": "pullback",
            "ARRAY_API_TESTS_VERSION": STANDARD,
            "PYTHONPATH": paths,
        }
        done = subprocess.run(command, cwd=suite, env=os.environ | chosen, capture_output=True)
        if not report.exists():
            raise SystemExit(f"{file.name}: no report.\n{(done.stdout + done.stderr).decode()}")
        return outcome(file.stem, ElementTree.parse(report).getroot())


def outcome(file: str, report: ElementTree.Element) -> Outcome:
    """The counts of a JUnit report."""
    passed, failed, skipped = 0, [], {}
    for case in report.iter("testcase"):
        omitted = case.find("skipped")
        if omitted is not None:
            reason = omitted.get("message", "")
            skipped[reason] = skipped.get(reason, 0) + 1
        elif case.find("failure") is not None or case.find("error") is not None:
            failed.append(case.get("name", ""))
        else:
            passed += 1
    return Outcome(file, passed, failed, skipped)


def section(suite: Path, examples: int, without: list[str], outcomes: list[Outcome]) -> str:
    """The text of the section."""
    passed, failed = sum(o.passed for o in outcomes), sum(len(o.failed) for o in outcomes)
    skipped = sum(sum(o.skipped.values()) for o in outcomes)
    python = ".".join(map(str, sys.version_info[:3]))
    packages = " and ".join(f"{n} {version(n)}" for n in ("numpy", "hypothesis"))
    options = f"--examples {examples}" + (f" --without {' '.join(without)}" if without else "")
    lines = [
        TITLE,
        "",
        f"**{passed} tests pass, {failed} fail, {skipped} are skipped by the suite.** Version"
        f" {STANDARD} of the standard, {examples} examples for each test;"
        f" [array-api-tests](https://github.com/data-apis/array-api-tests) at {commit(suite)}, with"
        f" the specification at {commit(suite / 'array-api')}. Python {python}, {packages}.",
        "",
        f"To run it again: `python tools/array_api.py PATH_OF_THE_SUITE {options}`.",
        "",
        "| file | passed | failed | skipped |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {o.file} | {o.passed} | {len(o.failed)} | {sum(o.skipped.values())} |" for o in outcomes
    ]
    reasons = {r: o.file for o in outcomes for r in o.skipped}
    if reasons:
        lines += ["", "Skipped because, in the words of the suite:", ""]
        lines += [f"- {file}: {reason}" for reason, file in reasons.items()]
    if failed:
        lines += ["", "Failed:", ""]
        lines += [
            f"- {o.file}: {', '.join(f'`{n}`' for n in o.failed)}" for o in outcomes if o.failed
        ]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("suite", type=Path, help="a checkout of array-api-tests")
    parser.add_argument("--examples", type=int, default=100, help="examples for each test")
    parser.add_argument("--without", nargs="+", default=[], help="extensions to leave out")
    given = parser.parse_args()
    outcomes = []
    for file in sorted((given.suite / "array_api_tests").glob("test_*.py")):
        outcomes.append(run(given.suite, file, given.examples, given.without))
        print(file.stem, outcomes[-1].passed, "passed", *outcomes[-1].failed, flush=True)
    text = section(given.suite, given.examples, given.without, outcomes)
    sections.put(TITLE, text)
    return 1 if any(o.failed for o in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
