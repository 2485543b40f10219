"""A worker process: runs the cases that it reads, a line each, and answers with a line each.

Before anything runs that might end the process, what is about to run is written to a file.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fuzz import handles, indexing, loops, operations
from fuzz.case import Case, Failed

__all__ = ["DRAWN", "answer", "main"]

DRAWN: dict[str, Callable[[int], Case]] = {
    "operations": operations.draw,
    "indexing": indexing.draw,
    "handles": handles.draw,
    "loops": loops.draw,
}

MOST_MEMORY = 4 << 30  # bytes of a process: some 600 times the largest array of a program


def answer(task: dict[str, Any], note: Callable[..., None]) -> dict[str, Any]:
    """What came of a task: `kind`, `seed`, and to make a case smaller `kept` and `check`."""
    try:
        note("draw")
        case: Case | None = DRAWN[task["kind"]](task["seed"])
    except Exception as error:  # raised while the program was run for the first time
        return failed(Failed(empty(task), "draw", error), [])
    assert case is not None
    steps = list(range(len(case.steps)))
    if "kept" in task:
        steps = task["kept"]
        case = case.only(steps, task["check"])
    if case is None or not case.steps:
        return {"checks": 0, "steps": 0}
    for check in case.checks:
        note(check, case.script(check, "It ended the process."), steps)
        try:
            case.run_check(check)
        except Failed as failure:
            return failed(failure, steps)
    return {"checks": len(case.checks), "steps": len(steps)}


def empty(task: dict[str, Any]) -> Case:
    return Case(task["kind"], task["seed"], [], [], (), ())


def failed(failure: Failed, steps: list[int]) -> dict[str, Any]:
    script = failure.case.script(failure.check, failure.said) if failure.case.steps else ""
    return {
        "checks": 1,
        "steps": len(steps),
        "sort": failure.sort,
        "check": failure.check,
        "said": failure.said,
        "kept": steps,
        "source": failure.case.source() if failure.case.steps else "",
        "script": script,
    }


def plant(name: str) -> None:
    """Break something on purpose, for the tests of the fuzzer itself."""
    from fuzz import planted

    getattr(planted, name)()


def main() -> None:
    """Answer tasks until there are no more; what is about to run is kept in the file named."""
    notes = Path(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_MEMORY, MOST_MEMORY))
    warnings.simplefilter("error")
    np.seterr(all="ignore")
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # nothing else may write among the answers
    if os.environ.get("FUZZ_PLANTED"):
        plant(os.environ["FUZZ_PLANTED"])

    def note(check: str, script: str = "", kept: Sequence[int] = ()) -> None:
        notes.write_text(json.dumps({"check": check, "script": script, "kept": kept}))

    for line in sys.stdin:
        start = time.perf_counter()
        found = answer(json.loads(line), note)
        found["seconds"] = time.perf_counter() - start
        answers.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
