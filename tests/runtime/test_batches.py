"""Batches of compilation: modules compiled side by side, addresses that stand for integers."""

import ctypes
import operator
import threading
from array import array
from typing import SupportsIndex

import pytest

from pullback.runtime.cpu.llvm import emission, jit


def constant(value: int) -> str:
    return f"define i64 @constant() {{ ret i64 {value} }}"


def call(address: SupportsIndex) -> int:
    return ctypes.CFUNCTYPE(ctypes.c_int64)(operator.index(address))()


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PULLBACK_CACHE_DIR", "")


@pytest.fixture(params=[1, 3])
def workers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(emission, "workers", lambda: request.param)
    return request.param


def test_every_address_is_that_of_its_module(workers: int) -> None:
    with jit.batch():
        found = [jit.compile_ir(constant(1000 + k), ["constant"])["constant"] for k in range(20)]
    assert [call(a) for a in found] == [1000 + k for k in range(20)]


def test_the_end_of_a_batch_waits_for_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is compiled afterwards."""
    with jit.batch():
        found = [jit.compile_ir(constant(2000 + k), ["constant"])["constant"] for k in range(5)]

    def refuse(*args: object) -> bytes:
        raise AssertionError("compiled after the batch")

    monkeypatch.setattr(jit, "_emit", refuse)
    assert array("q", found).tolist() == [operator.index(a) for a in found]


def test_modules_are_compiled_by_several_threads_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emission, "workers", lambda: 2)
    meeting = threading.Barrier(2, timeout=30)
    emit = emission.emit

    def both(text: str, passes: str) -> bytes:
        meeting.wait()  # breaks unless another thread comes
        return emit(text, passes)

    monkeypatch.setattr(jit, "_emit", both)
    with jit.batch():
        found = [jit.compile_ir(constant(3000 + k), ["constant"])["constant"] for k in range(2)]
    assert [call(a) for a in found] == [3000, 3001]


def test_code_does_not_depend_on_the_thread() -> None:
    text = constant(7)
    codes: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: codes.append(emission.emit(text, ""))) for _ in range(4)
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert set(codes) == {emission.emit(text, "")}


def test_an_address_can_be_used_before_the_batch_ends() -> None:
    with jit.batch():
        address = jit.compile_ir(constant(4000), ["constant"])["constant"]
        assert call(address) == 4000


def test_a_module_may_call_one_of_the_same_batch(workers: int) -> None:
    text = """
declare i64 @pullback_test_earlier()
define i64 @constant() {
  %x = call i64 @pullback_test_earlier()
  %y = add i64 %x, 1
  ret i64 %y
}"""
    with jit.batch():
        earlier = jit.compile_ir(constant(5000), ["constant"])["constant"]
        jit.add_symbol("pullback_test_earlier", earlier)
        later = jit.compile_ir(text, ["constant"])["constant"]
    assert call(later) == 5001


def test_an_error_is_raised_at_the_end_and_once_more_where_it_is_used(workers: int) -> None:
    found = []
    with pytest.raises(RuntimeError, match="define i64 @broken"), jit.batch():
        found.append(jit.compile_ir("define i64 @broken() { ret i32 0 }", ["broken"])["broken"])
    with pytest.raises(RuntimeError, match="define i64 @broken"):
        operator.index(found[0])
    assert call(jit.compile_ir(constant(6000), ["constant"])["constant"]) == 6000


def test_after_an_exception_addresses_are_compiled_when_asked_for() -> None:
    found = []
    with pytest.raises(KeyError), jit.batch():
        found.append(jit.compile_ir(constant(7000), ["constant"])["constant"])
        raise KeyError
    assert call(found[0]) == 7000
    assert isinstance(jit.compile_ir(constant(7001), ["constant"])["constant"], int)


def test_a_batch_inside_another_is_part_of_it() -> None:
    with jit.batch():
        with jit.batch():
            inner = jit.compile_ir(constant(8000), ["constant"])["constant"]
        outer = jit.compile_ir(constant(8001), ["constant"])["constant"]
        assert not isinstance(outer, int)
    assert (call(inner), call(outer)) == (8000, 8001)


def test_another_thread_is_in_no_batch() -> None:
    found = []
    with jit.batch():
        thread = threading.Thread(
            target=lambda: found.append(jit.compile_ir(constant(9000), ["constant"])["constant"])
        )
        thread.start()
        thread.join()
    assert isinstance(found[0], int) and call(found[0]) == 9000
