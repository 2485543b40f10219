"""One value for each key, and no code of Python's when a value dies."""

import gc
import signal
import sys
import threading
from typing import Any

import pytest

import pullback as pb
from pullback.core.avals import aval
from pullback.core.interning import LEAST, Interned


class Value:
    pass


def test_a_value_is_found_as_long_as_it_lives() -> None:
    table: Interned[Value] = Interned()
    value = table.add("a", Value())
    assert table.get("a") is value
    assert table.add("a", Value()) is value
    assert table.get("b") is None
    del value
    gc.collect()
    assert table.get("a") is None
    again = Value()
    assert table.add("a", again) is again


def test_dead_entries_are_dropped() -> None:
    table: Interned[Value] = Interned()
    kept = [table.add(i, Value()) for i in range(10)]
    for i in range(10, 20 * LEAST):
        table.add(i, Value())
    assert len(table) <= LEAST + 1
    assert [table.get(i) for i in range(10)] == kept
    many = [table.add(-i, Value()) for i in range(1, 5 * LEAST)]
    assert all(table.get(-i) is value for i, value in enumerate(many, 1))


def test_threads_get_the_same_value() -> None:
    found: dict[int, set[int]] = {}
    start = threading.Barrier(4)
    kept: list[Any] = []

    def work() -> None:
        start.wait()
        for i in range(3000):
            new = aval((7, 100_000 + i), pb.float32, pb.device("cpu"))
            kept.append(new)
            found.setdefault(i, set()).add(id(new))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert all(len(ids) == 1 for ids in found.values())


def test_no_interrupt_is_lost_while_values_die(monkeypatch: pytest.MonkeyPatch) -> None:
    lost: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lost.append)

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    device, caught = pb.device("cpu"), 0
    gc.disable()  # what others do at collections is not ours
    try:
        for turn in range(40):
            kept = [aval((turn, i + 1000), pb.float32, device) for i in range(2000)]
            try:
                signal.setitimer(signal.ITIMER_REAL, 2e-4 + turn * 2e-5)
                kept.clear()
                for _ in range(10**9):
                    pass
            except KeyboardInterrupt:
                caught += 1
    finally:
        gc.enable()
        signal.signal(signal.SIGALRM, before)
    assert caught == 40
    assert not lost
