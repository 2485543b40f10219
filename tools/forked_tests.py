"""Runs tests by processes that share what one of them has collected, operation after operation.

    PULLBACK_TEST_DEVICE=cuda PYTHONPATH=src:tests:. python tools/forked_tests.py OUT
        [--workers 15] [--seconds 540] [--part 1/2] [--only NAMES] [tests/generated ..]

All tests of an operation run in one process: they need the same kernels, which are compiled once.
Each process writes what became of a test to a file of its own under OUT as soon as it is known, so
that nothing is lost when the time is over. A process that dies gets a successor, which goes on
behind the test that ended it; so does one whose GPU is lost to it. NAMES is a file of tests, one a
line.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import signal
import sys
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

NAME = re.compile(r"\[(.+?)-\d+(?:-|\])")  # of the operation in what a generated test is called
STARTED = "started"
LOST = "can't be used by this process any more"  # what the runtime says of a GPU after a fault


class Forked:
    """A plugin of pytest that runs what was collected."""

    def __init__(
        self, out: Path, workers: int, seconds: float, part: tuple[int, int], only: set[str]
    ):
        self._out, self._workers, self._part, self._only = out, workers, part, only
        self._until = time.time() + seconds
        self._next = multiprocessing.get_context("fork").Value("i", 0)
        self._file: Any = None
        self.collected = 0

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Those of one part of all operations."""
        number, of = self._part
        items[:] = [
            i
            for i in items
            if zlib.crc32(operation(i).encode()) % of == number - 1
            and (not self._only or i.nodeid in self._only)
        ]
        self.collected = len(items)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        groups: defaultdict[str, list[pytest.Item]] = defaultdict(list)
        for item in session.items:
            groups[operation(item)].append(item)
        ordered = sorted(groups.values(), key=len, reverse=True)
        running = {self._fork(ordered, k): k for k in range(self._workers)}
        count = self._workers
        while running and time.time() < self._until + 15:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid not in running:
                time.sleep(0.2)
                continue
            number = running.pop(pid)
            if status:
                print(f"a process ended with {status}", flush=True)
                running[self._fork(ordered, count, self._rest(groups, number))] = count
                count += 1
        for pid in running:
            os.kill(pid, signal.SIGKILL)
        return True

    def _fork(
        self, groups: list[list[pytest.Item]], number: int, first: Sequence[pytest.Item] = ()
    ) -> int:
        pid = os.fork()
        if pid == 0:
            self._file = (self._out / f"{number}.jsonl").open("w", encoding="utf-8")
            self._work(chain(first, self._items(groups)))
            os._exit(0)
        return pid

    def _rest(self, groups: dict[str, list[pytest.Item]], number: int) -> list[pytest.Item]:
        """What a process that has ended left of its last operation."""
        rows = (self._out / f"{number}.jsonl").read_text("utf-8").splitlines()
        if not rows:
            return []
        last = json.loads(rows[-1])[0]
        group = next(g for g in groups.values() if any(i.nodeid == last for i in g))
        return group[next(k for k, i in enumerate(group) if i.nodeid == last) + 1 :]

    def _work(self, items: Iterator[pytest.Item]) -> None:
        item = next(items, None)
        while item is not None and time.time() < self._until:
            following = next(items, None)
            self._write(item.nodeid, STARTED, 0.0, "")
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            item = following

    def _items(self, groups: list[list[pytest.Item]]) -> Iterator[pytest.Item]:
        while True:
            with self._next.get_lock():
                number = self._next.value
                self._next.value += 1
            if number >= len(groups):
                return
            yield from groups[number]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            text = str(report.longrepr)[-1500:] if report.failed else ""
            self._write(report.nodeid, report.outcome, report.duration, text)
            if LOST in text:
                os._exit(1)

    def _write(self, *row: Any) -> None:
        print(json.dumps(row), file=self._file, flush=True)


def operation(item: pytest.Item) -> str:
    """The operation that a test is about, else its file."""
    found = NAME.search(item.nodeid)
    return found.group(1) if found else item.nodeid.partition("::")[0]


def summary(out: Path, collected: int) -> int:
    """Say what became of the tests that were collected; the number of failures."""
    outcomes: dict[str, tuple[str, float, str]] = {}
    for path in sorted(out.glob("*.jsonl")):
        last = ""
        for line in path.read_text("utf-8").splitlines():
            name, outcome, seconds, text = json.loads(line)
            if outcome == STARTED:
                last = name
                continue
            last = ""
            if outcomes.get(name, ("",))[0] != "failed":
                outcomes[name] = outcome, seconds, text
        if last:
            outcomes[last] = "ended its process, or was not done in time", 0.0, ""
    count = Counter(outcome for outcome, _, _ in outcomes.values())
    slow: Counter[str] = Counter()
    for name, (_, seconds, _) in outcomes.items():
        slow[name.partition("[")[0]] += int(seconds * 1000)
    bad = {n: found for n, found in outcomes.items() if found[0] not in ("passed", "skipped")}
    for name, (outcome, _, text) in sorted(bad.items()):
        print(f"{outcome}: {name}\n    " + "\n    ".join(text.splitlines()[-6:]))
    for name, milliseconds in slow.most_common(12):
        print(f"{milliseconds / 1000:8.1f} s  {name}")
    said = [f"{number} {outcome}" for outcome, number in count.most_common()]
    print(", ".join([*said, f"{collected - len(outcomes)} not run"]), flush=True)
    return len(bad)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("tests", nargs="*", default=["tests/generated"])
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=540.0)
    parser.add_argument("--part", default="1/1", help="of all operations")
    parser.add_argument("--only", type=Path, help="a file with the names of tests")
    options = parser.parse_intermixed_args()
    options.out.mkdir(parents=True, exist_ok=True)
    number, _, of = options.part.partition("/")
    only = set(options.only.read_text("utf-8").split("\n")) if options.only else set()
    plugin = Forked(options.out, options.workers, options.seconds, (int(number), int(of)), only)
    quiet = ["-p", "no:cacheprovider", "-p", "no:terminal", "-p", "no:xdist"]
    started = time.time()
    pytest.main([*quiet, *options.tests], plugins=[plugin])
    bad = summary(options.out, plugin.collected)
    print(f"{time.time() - started:.0f} s")
    return min(bad, 1)


if __name__ == "__main__":
    sys.exit(main())
