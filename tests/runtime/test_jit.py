"""Compilation of LLVM IR and the cache of object code."""

import ctypes
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pullback.runtime.code_cache import cache_directory
from pullback.runtime.cpu import native
from pullback.runtime.cpu.llvm import jit
from runtime.native_kernels import ADD, loop, run_python


def forbid_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> bytes:
        raise AssertionError("compiled again")

    monkeypatch.setattr(jit, "_emit", refuse)


def entries(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file()]


def constant(value: int) -> str:
    return f"define i64 @constant() {{ ret i64 {value} }}"


def call_constant(text: str) -> int:
    return ctypes.CFUNCTYPE(ctypes.c_int64)(jit.compile_ir(text, ["constant"])["constant"])()


def test_second_compilation_comes_from_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PULLBACK_CACHE_DIR", str(tmp_path / "a"))
    assert call_constant(constant(41)) == 41
    assert len(entries(tmp_path)) == 1
    forbid_compiling(monkeypatch)
    assert call_constant(constant(41)) == 41


@pytest.mark.parametrize("damage", ["empty", "cut", "flipped", "header", "longer"])
def test_damaged_entries_are_compiled_again(
    damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PULLBACK_CACHE_DIR", str(tmp_path))
    call_constant(constant(42))
    (entry,) = entries(tmp_path)
    good = entry.read_bytes()
    middle = len(good) // 2
    entry.write_bytes(
        {
            "empty": b"",
            "cut": good[:-10],
            "flipped": good[:middle] + bytes([good[middle] ^ 1]) + good[middle + 1 :],
            "header": b"x" + good[1:],
            "longer": good + b"\0",
        }[damage]
    )
    assert call_constant(constant(42)) == 42
    assert entry.read_bytes() == good


def test_cache_directory_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("PULLBACK_CACHE_DIR", str(tmp_path / "file"))
    assert call_constant(constant(43)) == 43


def test_cache_can_be_switched_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PULLBACK_CACHE_DIR", "")
    assert call_constant(constant(44)) == 44
    assert cache_directory() is None
    assert entries(tmp_path) == []


def test_cache_directory_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PULLBACK_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_directory() == Path("/somewhere/pullback")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_directory() == Path.home() / ".cache" / "pullback"


def test_processes_share_a_cache(tmp_path: Path) -> None:
    code = f"from pullback.runtime.cpu.llvm import jit; jit.compile_ir({ADD!r}, ['add'])"
    workers = [
        threading.Thread(
            target=run_python, args=(code,), kwargs={"PULLBACK_CACHE_DIR": str(tmp_path)}
        )
        for _ in range(3)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(entries(tmp_path)) == 1


def test_invalid_ir_is_reported_with_its_text() -> None:
    with pytest.raises(RuntimeError, match="define i64 @broken"):
        jit.compile_ir("define i64 @broken() { ret i32 0 }", ["broken"])
    with pytest.raises(RuntimeError, match="no_such_function_anywhere"):
        jit.compile_ir(
            "declare void @no_such_function_anywhere()\n"
            "define void @f() { call void @no_such_function_anywhere()\n ret void }",
            ["f"],
        )


def test_symbols_of_the_process_and_added_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PULLBACK_CACHE_DIR", str(tmp_path))
    text = """
declare double @cbrt(double)
declare i64 @pullback_test_hook(i64)
define i64 @constant() {
  %root = call double @cbrt(double 27.0)
  %whole = fptosi double %root to i64
  %hooked = call i64 @pullback_test_hook(i64 %whole)
  ret i64 %hooked
}"""
    for added in (100, 200):  # the second time from the cache, with another address
        hook = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(lambda x, added=added: x + added)
        address = ctypes.cast(hook, ctypes.c_void_p).value
        assert address is not None
        jit.add_symbol("pullback_test_hook", address)
        assert call_constant(text) == 3 + added
        forbid_compiling(monkeypatch)


CALLS_HOOK = """
declare i64 @pullback_test_called()
define i64 @constant() {
  %found = call i64 @pullback_test_called()
  ret i64 %found
}"""


def test_code_keeps_what_it_calls() -> None:
    called = jit.compile_ir(constant(6000), ["constant"])["constant"]
    key = called.origin.key
    jit.add_symbol("pullback_test_called", called)
    calling = jit.compile_ir(CALLS_HOOK, ["constant"])["constant"]
    del called
    jit.add_symbol("pullback_test_called", jit.compile_ir(constant(6001), ["constant"])["constant"])
    assert jit._live.get(key) is not None
    assert ctypes.CFUNCTYPE(ctypes.c_int64)(calling)() == 6000
    del calling
    assert jit._live.get(key) is None


def test_code_is_linked_again_by_its_origin(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PULLBACK_CACHE_DIR", str(tmp_path))
    origin = jit.compile_ir(constant(6100), ["constant"])["constant"].origin
    forbid_compiling(monkeypatch)
    found = jit.linked(origin)
    assert found is not None and ctypes.CFUNCTYPE(ctypes.c_int64)(found["constant"])() == 6100
    same = jit.linked(origin)
    assert same is not None and int(same["constant"]) == int(found["constant"])
    assert jit.linked(origin._replace(key="0" * 64)) is None
    assert jit.linked(origin._replace(key="1" * 64, imports=("pullback_nowhere",))) is None


def test_optimised_code_is_another_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PULLBACK_CACHE_DIR", str(tmp_path))
    jit.compile_ir(constant(5), ["constant"])
    jit.compile_ir(constant(5), ["constant"], optimise=True)
    assert len(entries(tmp_path)) == 2


def test_code_that_nobody_has_is_freed_and_other_code_stays() -> None:
    def linkers() -> int:
        return len(jit._linkers)

    kept = jit.compile_ir(constant(9000), ["constant"])["constant"]
    several = 4 * jit._Linker.MOST
    for k in range(several):
        jit.compile_ir(constant(9001 + k % 3), ["constant"])
    before = linkers()
    for k in range(several):
        jit.compile_ir(constant(9001 + k % 3), ["constant"])
    assert linkers() <= before
    assert ctypes.CFUNCTYPE(ctypes.c_int64)(kept)() == 9000


def test_a_program_keeps_the_code_that_it_runs() -> None:
    def program(value: int) -> Callable[..., object]:
        code = jit.compile_ir(loop("store", f"store i64 {value}, ptr %p0"), ["store"])["store"]
        return native.program(0, 8, (), [native.Stage(code, 1, 1, ())])

    kept = program(77)
    for k in range(4 * jit._Linker.MOST):
        program(k % 3)
    found = kept()
    assert isinstance(found, native.Buffer)
    assert np.frombuffer(memoryview(found), np.int64)[0] == 77
