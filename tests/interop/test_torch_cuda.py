"""The CUDA side of `pullback.torch`, with an emulator in the place of the device.

The emulator runs the kernels of `pullback.runtime.cuda` on host memory, so that torch's CPU tensors
can stand for CUDA tensors: what is tested is how calls are brought to the form of the kernels.
"""

from __future__ import annotations

import sys
import threading
from contextlib import nullcontext
from time import perf_counter

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # pyright: ignore[reportMissingImports]  # noqa: E402

import cuda_fake  # noqa: E402
import pullback.torch as pbt  # noqa: E402
from cuda_emulator import COMPILER  # noqa: E402
from cuda_fake_driver import FakeDriver  # noqa: E402
from interop.torch_cases import CASES, tensors  # noqa: E402
from pullback.core.errors import DeviceError  # noqa: E402
from pullback.interop import (  # noqa: E402
    torch_cuda,
    torch_faults,
    torch_operators,
    torch_reads,
    torch_rows,
)
from pullback.runtime.cuda import driver, gpu, modules, scatter  # noqa: E402
from pullback.runtime.cuda.scatter import executor  # noqa: E402

pytestmark = [
    pytest.mark.skipif(COMPILER is None, reason="there is no g++"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def in_place(t):
    """The memory of a host tensor as the emulator's array."""
    assert t.is_contiguous()
    bits = t.view(torch.uint16) if t.dtype is torch.bfloat16 else t.detach()
    return bits.numpy().view(cuda_fake.Array)


launching, watch_reads = torch_faults.launching, torch_faults._watch_reads


def told():
    """The word of the host, which a kernel sets where it finds a bad index."""
    return gpu.gpu_of(0).told


CACHES = (
    *(gpu.cupy_module, gpu._gpu, executor.shared_limit, executor.capability, executor.program),
    *(scatter._prepared, scatter.reading),
)


def forget():
    for cache in CACHES:
        cache.cache_clear()
    executor.StreamWords._own.__dict__.clear()
    torch_faults._lines.clear()
    torch_faults._told.clear()
    torch_faults._thread.lines.clear()
    torch_rows._known.clear()


@pytest.fixture(autouse=True)
def emulated(monkeypatch):
    library = FakeDriver()
    monkeypatch.setitem(sys.modules, "cupy", cuda_fake)
    monkeypatch.setattr(driver, "library", lambda: library)
    monkeypatch.setattr(modules, "machine_code", lambda source, target: source)
    forget()
    monkeypatch.setattr(torch_cuda, "_shared", in_place)
    monkeypatch.setattr(torch_cuda, "_working_on", lambda device: nullcontext(scatter))
    monkeypatch.setattr(torch_faults, "launching", lambda device: torch_faults.line_of(device, 0))
    monkeypatch.setattr(torch_faults, "_watch_reads", lambda: None)
    for name in ("gather", "scatter_sum", "scatter_add"):
        monkeypatch.setattr(torch_operators, f"_{name}_kernel", getattr(torch_cuda, name))
    yield
    forget()


FORMS = (
    "buffer", "inner axis", "0-d", "scatter_add in a corner", "gather", "segment_sum, 2-d",
    "index, apart", "index_put",
)  # fmt: skip


@pytest.mark.parametrize("case", [c for c in CASES if c.name in FORMS], ids=lambda c: c.name)
def test_every_form_and_its_gradients(case):
    found = []
    for f in (case.ours, case.theirs):
        args = tensors(case, torch.float32, grad=True)
        value = f(*args)
        found.append([value, *torch.autograd.grad(value.sin().sum(), args)])
    torch.testing.assert_close(*found)
    pbt.check()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.complex64, torch.int64])
def test_dtypes(dtype):
    x, i = torch.arange(8).reshape(4, 2).to(dtype), torch.tensor([3, 0, 3, -1])
    assert torch.equal(pbt.gather_with_index_add(x, i), x[i])
    wide = torch.complex128 if dtype.is_complex else torch.float64
    sums = torch.zeros(4, 2, dtype=wide).index_add(0, i % 4, x.to(wide))
    assert torch.equal(pbt.segment_sum(x, i, 4).to(wide), sums)


def double(t):
    """A tensor that stands for one on the host."""
    return torch.zeros(t.shape, dtype=torch.float64)


READS = {
    "item": lambda t: t.item(),
    "number": float,
    "condition": bool,
    "print": repr,
    "format": lambda t: f"{t[0]:.2f}",
    "comparison": lambda t: torch.allclose(t, t),
    "to a device": lambda t: t.to("cpu", torch.float64),
    "to options": lambda t: t.type_as(double(t)),
    "to another": lambda t: torch.ops.aten.to.other(t, double(t)),
    "copy into": lambda t: double(t).copy_(t),
    "copy of storage": lambda t: torch.UntypedStorage(4).copy_(t.untyped_storage()),
}


@pytest.fixture
def watched_reads(monkeypatch):
    """The CPU stands for the device, and there float32 for what is on it."""

    def is_float(value):
        return isinstance(value, torch.Tensor) and value.dtype is torch.float32

    monkeypatch.setattr(torch_reads, "_is_on_device", is_float)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    library = torch_reads.call_after_reads(torch_faults._settle_read, "CPU")
    yield
    library._destroy()


def launch_with(*indices):
    """A launch for each index into an axis of four."""
    for index in [torch.tensor([i]) for i in indices]:
        pbt.gather_with_index_add(torch.zeros(4), index)


@pytest.mark.parametrize("read", READS)
def test_a_read_raises_the_error_of_an_index(watched_reads, read):
    launch_with(9)
    kept = torch.zeros(4)[:1] * 2 + 1  # stays on the device
    with pytest.raises(IndexError, match=r"index 9 at position 0 .* size 4"):
        READS[read](kept)
    READS[read](kept)  # once is enough
    launch_with(3)
    READS[read](kept)
    assert not told().value


@pytest.mark.parametrize("read", ["item", "to a device", "to options"])
def test_a_read_in_inference_mode_raises(watched_reads, read):
    with torch.inference_mode():
        launch_with(9)
        with pytest.raises(IndexError, match="index 9"):
            READS[read](torch.ones(1))


def test_what_stays_on_the_device_raises_nothing(watched_reads):
    launch_with(9)
    x, y = torch.ones(3, 2), torch.zeros(3, 2)
    y.copy_(x)
    y[0] = 2.5
    y[1:].copy_(7)
    assert x.to("cpu") is x
    for copied in (x.t().contiguous(), x.clone(), x.to(torch.float64), x.half()):
        assert copied is not x
    assert told().value
    with pytest.raises(IndexError):
        y.sum().item()
    assert y.tolist() == [[2.5, 2.5], [7, 7], [7, 7]]


def test_every_error_is_raised_by_a_read_of_its_own(watched_reads):
    launch_with(9, 1, -5, 7)
    x = torch.ones(1)
    for index in (9, -5, 7):
        with pytest.raises(IndexError, match=f"index {index} at"):
            x.item()
    assert x.item() == 1


def test_a_launch_that_has_not_ended_is_looked_at_again(watched_reads):
    launch_with(3)
    told().value = 1  # as a launch does that goes on
    assert torch.ones(1).item() == 1
    launch_with(9)
    with pytest.raises(IndexError, match="index 9"):
        torch.ones(1).item()


def test_a_copy_that_a_cuda_graph_records_raises_nothing(watched_reads, monkeypatch):
    launch_with(9)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    double(torch.ones(2)).copy_(torch.ones(2), non_blocking=True)
    assert told().value


def test_a_read_gives_what_it_gave_before(watched_reads):
    numbers = (True, 2**62, -1.5, 2 - 3j, float("inf"))
    assert [torch.tensor(n).item() for n in numbers] == list(numbers)
    assert torch.tensor(2**63 + 1, dtype=torch.uint64).item() == 2**63 + 1
    x = torch.ones(3, requires_grad=True)
    y = torch.zeros(3).copy_(x * 2)
    (y.to("cpu", torch.float64) ** 2).sum().backward()
    assert x.grad.tolist() == [8, 8, 8]
    out = torch.zeros(3)
    assert out.copy_(x) is out
    with pytest.raises(RuntimeError, match="size of tensor"):
        out.copy_(torch.ones(2))


def test_a_read_in_a_hook_of_backward_raises(watched_reads):
    x = torch.ones(3, requires_grad=True)
    y = x * 2
    y.register_hook(lambda grad: launch_with(9) or grad * grad.sum().item())
    with pytest.raises(IndexError, match="index 9"):
        y.sum().backward()


def test_other_threads_run_during_a_read(watched_reads):
    source, target = torch.zeros(30_000_000, dtype=torch.int8), torch.zeros(30_000_000)
    times, over = [], threading.Event()

    def note_times():
        while not over.wait(0.001):
            times.append(perf_counter())

    def runs_during_copy():
        start = perf_counter()
        target.copy_(source)
        quarter = (perf_counter() - start) / 4
        return any(start + quarter < t < start + 3 * quarter for t in times)

    other = threading.Thread(target=note_times)
    other.start()
    try:
        assert any(runs_during_copy() for _ in range(10))
    finally:
        over.set()
        other.join()


def partly_compiled(x):
    total = (x * 2).sum().item()  # between two graphs
    return x.to("cpu", torch.float64) + total


def compiled_frames():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    value = torch.compile(partly_compiled, backend="aot_eager")(torch.ones(3))
    assert value.tolist() == [7, 7, 7]
    return torch._dynamo.utils.counters["frames"]["total"]


def test_reads_are_not_compiled(request):
    frames = compiled_frames()
    request.getfixturevalue("watched_reads")
    assert compiled_frames() == frames


def test_tensors_without_values_are_not_read(watched_reads):
    launch_with(9)
    with FakeTensorMode():
        x = torch.ones(3)
        assert x.to("cpu", torch.float64).shape == double(x).copy_(x).shape
    assert told().value


def test_an_index_out_of_range_is_raised_later():
    x = torch.zeros(4, 3)
    pbt.gather_with_index_add(x, torch.tensor([0, 9]))
    with pytest.raises(IndexError, match=r"gather_with_index_add: index 9 at position 1 .* size 4"):
        pbt.check()
    pbt.check()
    rows, columns = torch.tensor([0, 1]), torch.tensor([0, -4])
    pbt.index_put(x, (rows, columns), torch.ones(2), accumulate=True)
    with pytest.raises(IndexError, match=r"index_put: index -4 at position 1 .* size 3"):
        torch_faults.settle()


def test_an_index_out_of_range_is_raised_at_the_end_of_backward(monkeypatch):
    class Late:
        """The end of a launch that finds an error only then."""

        done = False

        def synchronize(self):
            told().value = 1

    def working_on(device):
        launching(0)
        return nullcontext(scatter)

    monkeypatch.setattr(torch_cuda, "_working_on", working_on)
    monkeypatch.setattr(torch_faults, "is_capturing", lambda: False)
    monkeypatch.setattr(gpu.Gpu, "is_idle", lambda self, stream: False)
    monkeypatch.setattr(gpu.Gpu, "mark", lambda self, stream, event: Late())
    x = torch.zeros(4, 3, requires_grad=True)
    value = pbt.gather_with_index_add(x, torch.tensor([0, 9])).sum()
    told().value = 0
    with pytest.raises(IndexError, match=r"gather_with_index_add: index 9 at position 1"):
        value.backward()
    with pytest.raises(IndexError, match="index 9"):  # of the pass itself
        pbt.check()
    pbt.gather_with_index_add(x, torch.tensor([0, 3])).sum().backward()


def test_calls_that_have_ended_are_let_go():
    x, i = torch.zeros(4), torch.tensor([1])
    for _ in range(5 * torch_faults.BATCH):
        pbt.gather_with_index_add(x, i)
    (line,) = torch_faults._lines
    assert len(line.calls) <= torch_faults.BATCH
    for _ in range(5 * torch_faults.BATCH):  # also where each pass marks its calls
        pbt.gather_with_index_add(x, i)
        line.mark()
    assert len(line.calls) <= torch_faults.BATCH


def test_an_empty_axis_has_no_places():
    with pytest.raises(IndexError, match="size 0"):
        pbt.gather_with_index_add(torch.zeros(0, 3), torch.tensor([0]))
    with pytest.raises(IndexError, match="size 0"):
        pbt.segment_sum(torch.ones(1, 3), torch.tensor([0]), 0)
    assert pbt.segment_sum(torch.ones(0, 3), torch.zeros(0, dtype=torch.int64), 2).sum() == 0


def test_a_plan():
    i = torch.tensor([3, 0, 3, 1])
    plan = pbt.ScatterPlan(i, 4, torch_cuda.make_plan(i, 4))
    x = torch.randn(4, 2)
    np.testing.assert_array_equal(pbt.segment_sum(x, plan), pbt.segment_sum(x, i, 4))


def test_the_first_launch_overrides_reads(monkeypatch):
    def is_overridden():
        return torch._C._dispatch_has_kernel_for_dispatch_key("aten::copy_", "AutogradCUDA")

    monkeypatch.undo()  # of `_watch_reads`
    assert not is_overridden()
    for _ in range(2):
        watch_reads()
        assert is_overridden() and watch_reads.cache_info().misses == 1
    watch_reads()._destroy()
    watch_reads.cache_clear()
    assert not is_overridden()


# -- rows, without detours -------------------------------------------------------------------------


@pytest.fixture
def plain_rows(monkeypatch):
    """The CPU stands for the device; gives the calls that took the short way."""
    taken = []

    def read(*args):
        taken.append("read")
        return read_rows(*args)

    def add(*args):
        taken.append("add")
        return add_rows(*args)

    read_rows, add_rows = torch_rows._ReadAndAdd.read, torch_rows._ReadAndAdd.add
    monkeypatch.setattr(torch_rows, "device_of", lambda x: 0)
    monkeypatch.setattr(torch_rows._ReadAndAdd, "read", read)
    monkeypatch.setattr(torch_rows._ReadAndAdd, "add", add)
    return taken


ROWS = {
    "embedding": lambda f, w, i: f.embedding(i, w, 2),
    "select": lambda f, w, i: (pbt if f is pbt else torch).index_select(w, 0, i.reshape(-1)),
}


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_and_their_gradients(name, dtype, plain_rows):
    i, found = torch.tensor([[3, 0, 2], [3, 1, 3]]), []
    for f in (pbt, torch.nn.functional):
        w = torch.linspace(-1, 1, 15).to(dtype).reshape(5, 3).requires_grad_()
        value = ROWS[name](f, w, i)
        g = torch.linspace(0, 1, value.numel()).to(dtype).reshape(value.shape)
        found.append([value, torch.autograd.grad(value, w, g, retain_graph=True)[0]])
        slope = torch.autograd.grad((value * value * value).sum(), w, create_graph=True)[0]
        found[-1].append(torch.autograd.grad((slope * slope).sum(), w)[0])
    torch.testing.assert_close(*found)
    assert plain_rows.count("read") >= 1 and plain_rows.count("add") >= 1


def test_what_is_not_plain_takes_the_long_way(plain_rows):
    w, i = torch.ones(5, 3), torch.tensor([3, 0])
    pbt.embedding(i, w)
    assert plain_rows.pop() == "read"
    tangent = torch.func.jvp(lambda w: pbt.embedding(i, w), (w,), (w,))[1]
    mapped = torch.func.vmap(lambda i: pbt.embedding(i, w))(i[:, None])
    empty = pbt.embedding(i[:0], w)
    with FakeTensorMode():
        fake = torch.ones(5, 3)
        assert torch_rows.rows(fake, i, None, "embedding") is None
    strided = pbt.embedding(torch.tensor([3, 9, 0, 9])[::2], w)
    assert tangent.shape == strided.shape == (2, 3)
    assert mapped.shape == (2, 1, 3) and empty.shape == (0, 3) and not plain_rows


@pytest.fixture
def dispatched(monkeypatch):
    """Operators are called as outside of tests: by PyTorch's dispatcher, on the CPU."""
    for name in ("gather", "scatter_sum", "scatter_add"):
        kernel = getattr(torch.ops.pullback, name).default
        monkeypatch.setattr(torch_operators, f"_{name}_kernel", kernel)


def test_compilers_take_the_long_way(plain_rows, dispatched):
    w, i = torch.randn(5, 3, requires_grad=True), torch.tensor([3, 0, 3])
    compiled = torch.compile(pbt.embedding, backend="aot_eager", fullgraph=True)
    grad = torch.autograd.grad(compiled(i, w).sin().sum(), w)[0]
    assert not plain_rows
    torch.testing.assert_close(grad, torch.autograd.grad(w[i].sin().sum(), w)[0])


def test_tensors_whose_memory_is_not_their_values_take_the_long_way(plain_rows, dispatched):
    i, x = torch.tensor([3, 0]), torch.randn(5, 3)
    kept = []
    torch.func.grad(lambda x: kept.append(x) or (x * x).sum())(x)
    z = torch.randn(5, 3, dtype=torch.complex64)
    for given in (torch._neg_view(x), z.conj(), torch._efficientzerotensor((5, 3)), kept[0]):
        torch.testing.assert_close(pbt.embedding(i, given), given[i])
    assert not plain_rows
    w = x.clone().requires_grad_()
    for g in (torch._neg_view(torch.ones(2, 3)), torch._efficientzerotensor((2, 3))):
        (grad,) = torch.autograd.grad(pbt.embedding(i, w), w, g)
        torch.testing.assert_close(grad, torch.zeros(5, 3).index_add(0, i, g.clone()))


def test_a_kind_of_call_is_known_from_the_first_on(plain_rows):
    memory = torch.randn(61)
    tables = [memory[k : k + 60].view(20, 3).detach().requires_grad_() for k in (0, 1)]
    with torch.inference_mode():
        pbt.embedding(torch.tensor([1, 2]), tables[0])
    for w in tables:  # at multiples of 16 bytes and elsewhere
        for i in (torch.tensor([3, 0]), torch.tensor([7, 7])):
            value = pbt.embedding(i, w)
            (grad,) = torch.autograd.grad(value.sum(), w)
            assert torch.equal(value, w[i])
            assert torch.equal(grad, torch.zeros(20, 3).index_add(0, i, torch.ones(2, 3)))
    assert len(torch_rows._known) == 1
    pbt.embedding(torch.tensor([3, 0]).int(), tables[0])
    pbt.gather_with_index_add(tables[0][:8].detach(), torch.tensor([3, 0]))
    assert len(torch_rows._known) == 3


def test_indices_that_change_before_the_backward_pass_are_an_error(plain_rows):
    w, i = torch.ones(5, 3, requires_grad=True), torch.tensor([3, 0])
    value = pbt.embedding(i, w).sum()
    i[0] = 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        value.backward()


def test_a_step_that_the_device_keeps_up_with_records_no_event(plain_rows, monkeypatch):
    monkeypatch.setattr(torch_faults, "launching", launching)
    monkeypatch.setattr(torch_faults, "is_capturing", lambda: False)
    monkeypatch.setattr(gpu.Gpu, "mark", None)
    w, i = torch.ones(5, 3, requires_grad=True), torch.tensor([3, 0])
    for _ in range(3 * torch_faults.BATCH):
        pbt.embedding(i, w).sum().backward()
    assert all(len(line.calls) <= torch_faults.BATCH for line in torch_faults._lines)


def test_a_bad_row_is_told_of(plain_rows):
    w = torch.ones(5, 3, requires_grad=True)
    value = pbt.embedding(torch.tensor([0, 7]), w)
    with pytest.raises(IndexError, match=r"embedding: index 7 at position 1 .* size 5"):
        pbt.check()
    assert value.tolist() == [[1, 1, 1], [0, 0, 0]]


@pytest.mark.parametrize("done", [False, True])
def test_a_pass_waits_at_its_end_for_what_has_not_ended(done, plain_rows, monkeypatch):
    class Mark:
        """The end of a launch."""

        done = False

    waits = []
    monkeypatch.setattr(torch_faults, "launching", launching)
    monkeypatch.setattr(torch_faults, "is_capturing", lambda: False)
    monkeypatch.setattr(gpu.Gpu, "is_idle", lambda self, stream: done)
    monkeypatch.setattr(gpu.Gpu, "mark", lambda self, stream, event: Mark())
    monkeypatch.setattr(torch_faults, "_settle_marks", waits.append)
    w = torch.ones(5, 3, requires_grad=True)
    (
        pbt.embedding(torch.tensor([1, 2]), w) * pbt.embedding(torch.tensor([0, 4]), w)
    ).sum().backward()
    assert len(waits) == (not done)
    value = pbt.embedding(torch.tensor([1, 7]), w).sum()
    with pytest.raises(IndexError, match="index 7 at position 1"):
        value.backward()
    pbt.check()  # which the pass has not told of again


def test_a_graph_that_is_being_captured_is_refused(monkeypatch):
    monkeypatch.setattr(torch_faults, "is_capturing", lambda: True)
    with pytest.raises(DeviceError, match="CUDA graph"):
        launching(0)
