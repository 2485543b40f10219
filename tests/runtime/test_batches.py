"""Batches of compilation: modules compiled side by side, addresses that stand for integers."""

import ctypes
import operator
import threading
import time
from array import array
from collections.abc import Iterable
from typing import Any, SupportsIndex

import pytest

from pullback.runtime.cpu.llvm import emission, jit


def constant(value: int) -> str:
    return f"define i64 @constant() {{ ret i64 {value} }}"


def constants(values: Iterable[int]) -> list[Any]:
    """Addresses of functions that return these values, each from a module of its own."""
    return [jit.compile_ir(constant(v), ["constant"])["constant"] for v in values]


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
    found = jit.together(constants, range(1000, 1020))
    assert [call(a) for a in found] == [1000 + k for k in range(20)]


def test_the_end_of_a_batch_waits_for_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is compiled afterwards."""
    found = jit.together(constants, range(2000, 2005))

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
    found = jit.together(constants, range(3000, 3002))
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
    assert jit.together(lambda: call(*constants([4000]))) == 4000


def test_a_module_may_call_one_of_the_same_batch(workers: int) -> None:
    text = """
declare i64 @pullback_test_earlier()
define i64 @constant() {
  %x = call i64 @pullback_test_earlier()
  %y = add i64 %x, 1
  ret i64 %y
}"""

    def both() -> Any:
        jit.add_symbol("pullback_test_earlier", *constants([5000]))
        return jit.compile_ir(text, ["constant"])["constant"]

    assert call(jit.together(both)) == 5001


def test_an_error_is_raised_at_the_end_and_once_more_where_it_is_used(workers: int) -> None:
    found = []

    def compile_broken() -> None:
        found.append(jit.compile_ir("define i64 @broken() { ret i32 0 }", ["broken"])["broken"])

    with pytest.raises(RuntimeError, match="define i64 @broken"):
        jit.together(compile_broken)
    with pytest.raises(RuntimeError, match="define i64 @broken"):
        operator.index(found[0])
    assert call(jit.compile_ir(constant(6000), ["constant"])["constant"]) == 6000


def test_after_an_exception_addresses_are_compiled_when_asked_for() -> None:
    found = []

    def fail() -> None:
        found.extend(constants([7000]))
        raise KeyError

    with pytest.raises(KeyError):
        jit.together(fail)
    assert call(found[0]) == 7000
    assert isinstance(jit.compile_ir(constant(7001), ["constant"])["constant"], int)


def test_a_batch_inside_another_is_part_of_it() -> None:
    def outside() -> list[Any]:
        inside = jit.together(constants, [8000])
        assert not isinstance(inside[0], int)
        return inside + constants([8001])

    assert [call(a) for a in jit.together(outside)] == [8000, 8001]


def test_another_thread_is_in_no_batch() -> None:
    found = []

    def elsewhere() -> None:
        thread = threading.Thread(target=lambda: found.extend(constants([9000])))
        thread.start()
        thread.join()

    jit.together(elsewhere)
    assert isinstance(found[0], int) and call(found[0]) == 9000


def test_threads_that_need_a_module_first_share_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that was linked a second time would take the place of the first: whoever calls a symbol
    keeps what it stands for, but has the integer that it was.
    """
    link, found = jit._link, []

    def slow(*given: Any) -> Any:
        time.sleep(0.05)
        return link(*given)

    def asked() -> list[int]:
        (address,) = shared
        return [operator.index(address)]

    def held() -> Any:
        """A batch that another thread looks into before it ends."""
        made = constants([4000])
        shared.extend(made)
        threads = [threading.Thread(target=lambda: found.extend(asked())) for _ in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        return made

    shared: list[Any] = []
    monkeypatch.setattr(jit, "_link", slow)
    (address,) = jit.together(held)
    assert set(found) == {operator.index(address)} and call(address) == 4000
