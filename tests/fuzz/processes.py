"""Worker processes: given a task each, watched, ended when they take too long."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

__all__ = ["Worker"]

ROOT = Path(__file__).parents[2]
MOST_TASKS = 200  # of one process: compiled code and plans pile up


class Worker:
    """One process at a time, and another one after a crash, a hang or many tasks."""

    def __init__(self, limit: float):
        self.limit = limit  # seconds for one task
        self.folder = tempfile.TemporaryDirectory(prefix="fuzz-")
        self.process: subprocess.Popen[str] | None = None
        self.task: dict[str, Any] | None = None
        self.tasks = 0
        self.started = 0.0
        self.errors = Path(self.folder.name, "errors")
        self.notes = Path(self.folder.name, "notes")

    def start(self) -> None:
        environment = dict(os.environ)
        paths = [str(ROOT / "src"), str(ROOT / "tests"), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(p for p in paths if p)
        environment["PULLBACK_CACHE_DIR"] = ""  # programs that never come again
        self.tasks = 0
        self.answers: queue.Queue[str] = queue.Queue()
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-X", "faulthandler", "-m", "fuzz.worker", str(self.notes)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
                env=environment, text=True, cwd=self.folder.name,
            )  # fmt: skip
        threading.Thread(
            target=_read, args=(self.process.stdout, self.answers), daemon=True
        ).start()

    def give(self, task: dict[str, Any]) -> None:
        if self.process is None or self.process.poll() is not None or self.tasks >= MOST_TASKS:
            self.end()
            self.start()
        assert self.process is not None and self.process.stdin is not None
        self.notes.write_text("{}")
        self.task, self.started = task, time.monotonic()
        self.tasks += 1
        self.process.stdin.write(json.dumps(task) + "\n")
        self.process.stdin.flush()

    def answer(self, wait: float) -> dict[str, Any] | None:
        """What came of the task, None if that is not known within `wait` seconds."""
        assert self.process is not None
        try:
            line = self.answers.get(timeout=wait)
        except queue.Empty:
            if time.monotonic() - self.started < self.limit:
                return None
            return self.ended("hang", f"no answer within {self.limit:g} s")
        if line:
            self.task = None
            return json.loads(line)
        code = self.process.wait()
        said = self.errors.read_text(errors="replace")[-1500:]
        return self.ended("crash", f"the process ended with {code}\n{said}")

    def ended(self, sort: str, said: str) -> dict[str, Any]:
        """What is known of a task whose process is gone."""
        self.end()
        notes = json.loads(self.notes.read_text() or "{}")
        check, script = notes.get("check", "start"), notes.get("script", "")
        self.task = None
        return {
            "checks": 0, "steps": 0, "sort": f"{check}: {sort}", "check": check, "said": said,
            "script": script, "source": "", "gone": sort, "kept": notes.get("kept", []),
            "seconds": 0.0,
        }  # fmt: skip

    def run(self, task: dict[str, Any]) -> dict[str, Any]:
        """The answer to a task, waited for."""
        self.give(task)
        while True:
            found = self.answer(1.0)
            if found is not None:
                return found

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            for stream in (self.process.stdin, self.process.stdout):
                if stream is not None:
                    stream.close()
            self.process = None

    def close(self) -> None:
        self.end()
        self.folder.cleanup()


def _read(lines: Any, answers: queue.Queue[str]) -> None:
    """Pass lines on; an empty one says that the process has ended."""
    try:
        for line in lines:
            answers.put(line)
    except ValueError:  # closed by the other thread
        pass
    answers.put("")
