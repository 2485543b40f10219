"""The native core of the CPU runtime: buffers, allocator and programs."""

import ctypes
import gc
import itertools
import random
import struct
import sys
import weakref
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pullback.runtime.cpu import native
from pullback.runtime.cpu.llvm import jit
from pullback.runtime.cpu.native import Buffer, Stage, empty, memory, program, view, wrap
from runtime.native_kernels import kernel, of, run_python, values

pytestmark = pytest.mark.usefixtures("no_garbage")


@pytest.fixture(autouse=True)
def settings_restored() -> Iterator[None]:
    threads, limit = native.get_threads(), memory()["cache_limit"]
    yield
    native.set_threads(threads)
    native.set_cache_limit(limit)


@pytest.mark.parametrize("nbytes", [0, 1, 64, 65, 4096, 3 << 20, 5 << 20])
def test_empty(nbytes: int) -> None:
    before = memory()["live"]
    buffer = empty(nbytes)
    assert type(buffer) is Buffer
    assert buffer.nbytes == nbytes
    assert buffer.address % 64 == 0
    assert memory()["live"] == before + nbytes
    bytes_ = memoryview(buffer)
    assert (bytes_.nbytes, bytes_.format, bytes_.readonly) == (nbytes, "B", False)
    bytes_[:] = b"x" * nbytes
    assert ctypes.string_at(buffer.address, nbytes) == b"x" * nbytes
    del buffer
    assert memory()["live"] == before + nbytes  # the memoryview keeps it
    del bytes_
    assert memory()["live"] == before


def test_numpy_shares_the_memory() -> None:
    buffer = empty(40)
    array = np.frombuffer(memoryview(buffer), np.float32)
    array[:] = range(10)
    assert array.ctypes.data == buffer.address
    assert struct.unpack("10f", memoryview(buffer)) == tuple(range(10))


def test_views_keep_the_root_alive() -> None:
    before = memory()["live"]
    base = empty(100)
    memoryview(base)[:] = bytes(range(100))
    watch = weakref.ref(base)
    inner = view(view(base, 10), 20)
    assert (inner.address, inner.nbytes) == (base.address + 30, 70)
    assert sys.getrefcount(base) == 3  # the name, the argument, the view: nothing between
    del base
    assert watch() is not None
    assert bytes(memoryview(inner)[:3]) == b"\x1e\x1f\x20"
    assert view(inner, 70).nbytes == 0
    del inner
    assert watch() is None
    assert memory()["live"] == before


def test_wrap_keeps_the_owner_alive() -> None:
    array = np.arange(4, dtype=np.int64)
    count, before = sys.getrefcount(array), memory()["live"]
    buffer = of(array)
    inner = view(buffer, 8)
    assert sys.getrefcount(array) == count + 2
    del buffer
    assert list(memoryview(inner).cast("q")) == [1, 2, 3]
    assert memory()["live"] == before  # not ours to count
    del inner
    assert sys.getrefcount(array) == count


def test_buffer_cannot_be_made_or_changed_from_python() -> None:
    for action in (Buffer, lambda: setattr(empty(1), "nbytes", 5), lambda: setattr(Buffer, "x", 1)):
        with pytest.raises((TypeError, AttributeError)):
            action()


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (empty, TypeError, "empty: takes 1 arguments, got 0"),
        (lambda: empty("1"), TypeError, "integer"),  # pyright: ignore[reportArgumentType]
        (lambda: empty(-1), ValueError, "must not be negative, got -1"),
        (lambda: empty(1 << 46), MemoryError, f"{1 << 46} bytes"),
        (lambda: empty(1 << 63), OverflowError, "int"),
        (lambda: view(empty(8), 9), ValueError, "got 9 of 8 bytes"),
        (lambda: view(empty(8), "1"), TypeError, "integer"),  # pyright: ignore[reportArgumentType]
        (lambda: view(b"12345678", 0), TypeError, "must be a Buffer, got .*bytes"),  # pyright: ignore[reportArgumentType]
        (lambda: wrap(0, -5, None), ValueError, "got -5"),
        (lambda: native.set_threads(0), ValueError, "between 1 and 1024, got 0"),
        (lambda: program(1, -1, (), ()), ValueError, "output of -1 bytes"),
        (lambda: program(0, 8, (), [Stage(0, 1, 1, ())]), ValueError, "needs a kernel"),
        (lambda: program(0, 8, (), [Stage(1, 1, 0, ())]), ValueError, "grain >= 1"),
    ],
)
def test_errors(call, error: type[Exception], text: str) -> None:
    before = memory()["live"]
    with pytest.raises(error, match=text):
        call()
    assert memory()["live"] == before


@pytest.mark.parametrize("nbytes", [40, 5000, 3 << 20])
def test_freed_memory_is_used_again(nbytes: int) -> None:
    buffer = empty(nbytes)
    address, cached = buffer.address, memory()["cached"]
    del buffer
    assert memory()["cached"] >= cached + nbytes
    assert empty(nbytes).address == address


def test_peak() -> None:
    native.reset_peak()
    start = memory()["live"]
    assert memory()["peak"] == start
    del_me = [empty(1000) for _ in range(10)]
    del del_me
    assert memory() == {**memory(), "live": start, "peak": start + 10_000}
    native.reset_peak()
    assert memory()["peak"] == start


def test_release_cached() -> None:
    for nbytes in (10, 700, 9 << 20):
        empty(nbytes)
    cached = memory()["cached"]
    assert cached > 9 << 20
    assert native.release_cached() == cached
    assert memory()["cached"] == 0
    assert native.release_cached() == 0


def test_cache_limit_drops_the_longest_unused() -> None:
    native.release_cached()
    native.set_cache_limit(8 << 20)
    blocks = [empty(n << 20) for n in (2, 3, 2, 4)]
    addresses = [block.address for block in blocks]
    for _ in range(4):
        blocks.pop(0)  # the first to be freed is the first to go
    assert memory()["cached"] == 6 << 20
    assert empty(4 << 20).address == addresses[3]
    kept = empty(2 << 20)
    assert kept.address == addresses[2]
    empty(9 << 20)  # larger than the limit: given back at once, and nothing else with it
    assert memory()["cached"] == 4 << 20
    native.set_cache_limit(0)
    assert memory()["cached"] == 0
    del kept
    assert memory()["cached"] == 0


def test_small_blocks_count_for_the_limit() -> None:
    native.release_cached()
    native.set_cache_limit(1024)
    blocks = [empty(64) for _ in range(100)]
    del blocks
    assert memory()["cached"] == 1024


@given(st.lists(st.tuples(st.integers(0, 3 << 20), st.booleans(), st.randoms()), max_size=60))
def test_live_buffers_never_overlap(steps: list[tuple[int, bool, random.Random]]) -> None:
    native.set_cache_limit(6 << 20)
    start = memory()["live"]
    alive: list[tuple[Buffer, bytes]] = []
    for number, (nbytes, large, chooser) in enumerate(steps):
        if alive and chooser.random() < 0.4:
            alive.pop(chooser.randrange(len(alive)))
        nbytes = nbytes if large else nbytes % 2000
        buffer, mark = empty(nbytes), struct.pack("q", number)
        if nbytes >= 16:
            memoryview(buffer)[:8] = memoryview(buffer)[-8:] = mark
        alive.append((buffer, mark))
        assert memory()["live"] == start + sum(b.nbytes for b, _ in alive)
        assert memory()["cached"] <= 6 << 20
    for buffer, mark in alive:
        if buffer.nbytes >= 16:
            assert bytes(memoryview(buffer)[:8]) == bytes(memoryview(buffer)[-8:]) == mark
    spans = sorted((b.address, b.address + b.nbytes) for b, _ in alive)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))


@pytest.mark.parametrize("heavy", [False, True])
def test_add(heavy: bool) -> None:
    a, b = np.arange(10, dtype=np.float32), np.full(10, 0.5, np.float32)
    run = program(2, 40, (), [Stage(kernel("add"), 10, 10, ())], heavy=heavy)
    result = run(of(a), of(b))
    assert isinstance(result, Buffer)
    assert result.nbytes == 40
    np.testing.assert_array_equal(values(result), a + b)


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("grain", [1, 7, 64, 1000])
def test_stages_with_scratch(threads: int, grain: int) -> None:
    n = 777
    native.set_threads(threads)
    stages = [
        Stage(kernel("scale"), n, grain, (3,)),
        Stage(kernel("reverse"), n, grain, (n - 1,)),
        Stage(kernel("reverse"), 0, grain, (n - 1,)),
    ]
    # The kernels find their scratch at ptrs[2]: behind the output and one input.
    run = program(1, 8 * n, (8 * n, 5), stages)
    data = np.arange(n, dtype=np.int64)
    before = memory()["live"]
    for _ in range(50):
        np.testing.assert_array_equal(values(run(of(data)), np.int64), 3 * data[::-1])
    assert memory()["live"] == before


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("grain", [10, 1000])
def test_lowest_error_is_returned_and_stops_the_program(threads: int, grain: int) -> None:
    native.set_threads(threads)
    after = [Stage(kernel("fail"), 1000, grain, (0, 1))]  # would report position 0
    run = program(0, 8, (16,), [Stage(kernel("fail"), 1000, grain, (333, 7)), *after])
    before = memory()["live"]
    for _ in range(100):
        assert run() == (7, 336, -336)
    assert memory()["live"] == before


def test_wrong_arguments() -> None:
    run = program(2, 40, (), [Stage(kernel("add"), 10, 10, ())])
    good = empty(40)
    for arguments in [(), (good,), (good, good, good)]:
        with pytest.raises(TypeError, match=f"program: takes 2 arguments, got {len(arguments)}"):
            run(*arguments)
    with pytest.raises(TypeError, match=r"argument 2 must be a Buffer, got .*NoneType"):
        run(good, None)
    with pytest.raises(TypeError, match="keyword"):
        run(good, other=good)


def test_calls_leak_nothing() -> None:
    a = empty(40)
    run = program(2, 40, (64, 2 << 20), [Stage(kernel("add"), 10, 10, ())])
    wrong = program(0, 40, (64,), [Stage(kernel("fail"), 10, 10, (0, 1))])
    run(a, a)
    gc.collect()

    def state() -> tuple[object, ...]:
        return sys.getrefcount(a), sys.getrefcount(Buffer), memory(), sys.getrefcount(run)

    before = state()
    for _ in range(2000):
        run(a, a)
        wrong()
        view(a, 4)
        with pytest.raises(TypeError):
            run(a, 3)
    assert state() == before


def test_no_memory_for_the_scratch() -> None:
    run = program(0, 40, (64, 1 << 46), [Stage(kernel("sleep"), 1, 1, (0,))])
    before = memory()["live"]
    with pytest.raises(MemoryError, match=str(1 << 46)):
        run()
    assert memory()["live"] == before


def test_program_keeps_its_description() -> None:
    run = program(0, 8, (), [Stage(kernel("fail"), 10, 10, (4, 4))])
    gc.collect()
    keep = [bytearray(200) for _ in range(1000)]
    assert run() == (7, 4, -4)
    assert len(keep) == 1000


def test_many_inputs() -> None:
    one = of(np.ones(10, np.float32))
    for count in (4000, 60_000):
        run = program(count, 40, (8,), [Stage(kernel("add"), 10, 10, ())])
        np.testing.assert_array_equal(values(run(*[one] * count)), np.full(10, 2, np.float32))
    with pytest.raises(ValueError, match="at most 65536"):
        program(70_000, 40, (), [])


@pytest.mark.skipif(not jit.host().triple.startswith("x86_64"), reason="sets a register of x86-64")
def test_kernels_keep_denormals_whatever_the_caller_does() -> None:
    text = """
declare void @llvm.x86.sse.ldmxcsr(ptr)
declare void @llvm.x86.sse.stmxcsr(ptr)
define i32 @set_mode(i32 %mode) {
  %slot = alloca i32
  %old = alloca i32
  call void @llvm.x86.sse.stmxcsr(ptr %old)
  store i32 %mode, ptr %slot
  call void @llvm.x86.sse.ldmxcsr(ptr %slot)
  %before = load i32, ptr %old
  ret i32 %before
}"""
    mode = ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_uint32)(
        jit.compile_ir(text, ["set_mode"])["set_mode"]
    )
    tiny = np.array([1], np.uint32).view(np.float32)
    run = program(2, 4, (), [Stage(kernel("add"), 1, 1, ())])
    flush = 0x1F80 | 1 << 15 | 1 << 6
    before = mode(flush)
    try:
        result = run(of(tiny), of(tiny))
        assert mode(flush) & 0xFFC0 == flush
    finally:
        mode(before)
    assert isinstance(result, Buffer)
    assert memoryview(result).cast("I")[0] == 2


def test_a_view_may_be_moved_back() -> None:
    base = empty(16)
    last = view(base, 8)
    first = view(last, -8)
    assert (first.address, first.nbytes) == (base.address, 16)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_large_block_takes_the_memory_that_was_asked_for():
    """Sizes are rounded up to classes, and pages may be huge: neither may take memory."""
    code = """
    import ctypes
    from pathlib import Path
    from pullback.runtime.cpu import native

    def resident():
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmRSS"))

    nbytes = (40 << 20) + 70_000
    before = resident()
    buffer = native.empty(nbytes)
    ctypes.memset(buffer.address, 1, nbytes)
    assert resident() - before < nbytes + (300 << 10), resident() - before - nbytes
    """
    run_python(code)


LITTLE_MEMORY = """
import os

real = os.sysconf
os.sysconf = lambda name: 1 << 14 if name == "SC_PHYS_PAGES" else real(name)
import pullback as pb

from pathlib import Path
swap = [line for line in Path("/proc/meminfo").read_text().splitlines() if "SwapTotal" in line]
assert swap, "no such system"
room = (1 << 14) * real("SC_PAGE_SIZE") + 1024 * int(swap[0].split()[1])
pb.ones(1 << 20, dtype="uint8") + 1
try:
    pb.ones(room + 1, dtype="uint8") + 1
except MemoryError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for the size of swap")
def test_an_array_larger_than_memory_and_swap_is_refused_whatever_the_system_promises() -> None:
    assert run_python(LITTLE_MEMORY).startswith("cpu: out of memory, got a request for")
