"""The CUDA side of `pullback.torch`, with an emulator in the place of the device.

The emulator runs the kernels of `pullback.runtime.cuda` on host memory, so that torch's CPU tensors
can stand for CUDA tensors: what is tested is how calls are brought to the form of the kernels.
"""

from __future__ import annotations

import ctypes
import sys
from contextlib import nullcontext

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import cuda_fake  # noqa: E402
import pullback.torch as pbt  # noqa: E402
from cuda_emulator import COMPILER  # noqa: E402
from interop.torch_cases import CASES, tensors  # noqa: E402
from pullback.interop import torch_cuda, torch_operators, torch_reads  # noqa: E402
from pullback.runtime.cuda import scatter  # noqa: E402
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


class Watched:
    """The error word of a launch that has ended."""

    def __init__(self, checked):
        position = checked.bad_position()
        self._word = 0 if position is None else position + 1

    def is_full(self) -> bool:
        return True

    def empty(self) -> int:
        return self._word


def watch(checked, name, indices, sizes):
    pending = torch_cuda._Pending(Watched(checked), checked, name, tuple(indices), tuple(sizes))
    torch_cuda._pending.append(pending)


@pytest.fixture(autouse=True)
def emulated(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", cuda_fake)
    monkeypatch.setattr(executor, "machine_code", lambda source, target: source)
    caches = (executor.cupy_module, executor.shared_limit, executor.compiled, executor.program)
    for cache in (*caches, executor._function, scatter._prepared):
        cache.cache_clear()
    executor.Slots._own.__dict__.clear()
    monkeypatch.setattr(torch_cuda, "_shared", in_place)
    monkeypatch.setattr(torch_cuda, "_working_on", lambda device: nullcontext(scatter))
    monkeypatch.setattr(torch_cuda, "_watch", watch)
    for name in ("gather", "scatter_sum", "scatter_add"):
        monkeypatch.setattr(torch_operators, f"_{name}_kernel", getattr(torch_cuda, name))
    yield
    torch_cuda._pending.clear()
    for cache in (*caches, executor._function, scatter._prepared):
        cache.cache_clear()


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


READS = {
    "item": lambda t: t.item(),
    "list": lambda t: t.tolist(),
    "print": repr,
    "format": lambda t: f"{t:.2f}",
    "number": float,
    "condition": bool,
    "array": np.asarray,
    "copy to the host": lambda t: t.to(torch.float64),
    "copy into the host": lambda t: torch.zeros(1, dtype=torch.float64).copy_(t),
}


@pytest.fixture
def floats_on_device(monkeypatch):
    """float32 stands for tensors on the device."""

    def is_float(value):
        return isinstance(value, torch.Tensor) and value.dtype is torch.float32

    monkeypatch.setattr(torch_reads, "_is_on_device", is_float)


@pytest.mark.parametrize("read", READS)
def test_an_index_out_of_range_is_raised_when_a_result_is_read(floats_on_device, read):
    x = torch.zeros(4)
    pbt.gather_with_index_add(x, torch.tensor([9]))
    with pbt.checked_reads():
        kept = x[:1] * 2 + 1  # stays on the device
        assert kept.shape == (1,)
        with pytest.raises(IndexError, match="index 9 at position 0"):
            READS[read](kept[0] if read == "format" else kept)
        READS[read](kept[0] if read == "format" else kept)  # once is enough


def test_reading_raises_nothing_by_itself(floats_on_device):
    x = torch.ones(4)
    pbt.gather_with_index_add(x, torch.tensor([9]))
    assert x[0].item() == 1
    with pbt.checked_reads():
        assert torch.ones(1, dtype=torch.float64).item() == 1  # on the host all the time
        with pytest.raises(IndexError):
            x[0].item()


def test_an_index_out_of_range_is_raised_later():
    x = torch.zeros(4, 3)
    pbt.gather_with_index_add(x, torch.tensor([0, 9]))
    with pytest.raises(IndexError, match=r"gather_with_index_add: index 9 at position 1 .* size 4"):
        pbt.check()
    pbt.check()
    rows, columns = torch.tensor([0, 1]), torch.tensor([0, -4])
    pbt.index_put(x, (rows, columns), torch.ones(2), accumulate=True)
    with pytest.raises(IndexError, match=r"index_put: index -4 at position 1 .* size 3"):
        torch_cuda._settle_ended()


def test_an_index_out_of_range_is_raised_at_the_end_of_backward(monkeypatch):
    def working_on(device):
        torch_cuda._settle_after_backward()
        return nullcontext(scatter)

    monkeypatch.setattr(torch_cuda, "_working_on", working_on)
    monkeypatch.setattr(Watched, "is_full", lambda self: False)
    x = torch.zeros(4, 3, requires_grad=True)
    value = pbt.gather_with_index_add(x, torch.tensor([0, 9])).sum()
    with pytest.raises(IndexError, match=r"gather_with_index_add: index 9 at position 1"):
        value.backward()
    torch_cuda._pending.clear()
    pbt.gather_with_index_add(x, torch.tensor([0, 3])).sum().backward()
    assert len(torch_cuda._pending) == 1  # what the pass itself launched is looked at later


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


class Done:
    """An event that has come."""

    def record(self) -> None:
        pass

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass


class Copied:
    """What a launch found, whose word is copied at once."""

    def __init__(self, word):
        self._word = word

    def copy_word(self, address):
        ctypes.c_int64.from_address(address).value = self._word


def test_mailboxes_are_used_again(monkeypatch):
    zeros = torch.zeros
    monkeypatch.setattr(torch.cuda, "Event", Done)
    monkeypatch.setattr(torch, "zeros", lambda n, dtype, pin_memory: zeros(n, dtype=dtype))
    monkeypatch.setattr(torch_cuda, "_mailboxes", {})
    taken = [torch_cuda._mailbox(0) for _ in range(torch_cuda.MAILBOXES + 1)]
    assert len({m.address for m in taken}) == len(taken)
    for k, mailbox in enumerate(taken):
        mailbox.post(Copied(k))
    assert taken[5].is_full()
    assert [m.empty() for m in taken] == list(range(len(taken)))
    again = torch_cuda._mailbox(0)
    assert again is taken[-1]
    again.post(Copied(7))
    assert again.empty() == 7
