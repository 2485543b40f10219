"""What `lower` tells of memory, against what a call really takes."""

from __future__ import annotations

from xml.etree import ElementTree

import numpy as np
import pytest

import pullback as pb
from pullback.runtime.cpu import native


def drawn(*shape: int) -> pb.Tensor:
    return pb.tensor(np.random.default_rng(0).random(shape, np.float32))


def network(weights, x):
    for w in weights:
        x = pb.tanh(x @ w)
    return (x * x).mean()


def running(x):
    return pb.scan(lambda c, r: (c + pb.sort(r), c * r), pb.zeros(64), x)


PROGRAMS = {
    "network": (pb.value_and_grad(network), ([drawn(64, 64) for _ in range(5)], drawn(256, 64))),
    "small": (pb.value_and_grad(network), ([drawn(3, 3) for _ in range(2)], drawn(5, 3))),
    "sort": (lambda x: pb.sort(x) + pb.cumulative_sum(x), (drawn(5000),)),
    "loop": (running, (drawn(50, 64),)),
    "one kernel": (lambda x: pb.exp(x) * 2.0, (drawn(1000),)),
    "softmax": (pb.grad(lambda x: (pb.nn.softmax(x, dim=0) ** 2).sum()), (drawn(300, 40),)),
    "scalar": (lambda x: x.sum(), (drawn(10),)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_planned_peak_is_what_a_call_allocates(name):
    f, args = PROGRAMS[name]
    jitted = pb.jit(f)
    lowered = jitted.lower(*args)
    jitted(*args)
    before = native.memory()["live"]
    native.reset_peak()
    result = jitted(*args)
    assert native.memory()["peak"] - before == lowered.peak_bytes
    memory = lowered.memory()
    assert memory.peak_bytes == lowered.peak_bytes
    assert native.memory()["live"] - before == memory.output_bytes
    del result


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_timeline_fits_into_the_plan(name):
    f, args = PROGRAMS[name]
    memory = pb.jit(f).lower(*args).memory()
    sizes = {"arena": memory.arena_bytes, "out": memory.output_bytes}
    for b in memory.blocks:
        assert 0 <= b.start <= b.stop < len(memory.steps)
        assert b.offset + b.nbytes <= sizes[b.area]
    assert max(memory.live_bytes) <= memory.peak_bytes
    at_peak = {(b.area, b.offset, b.nbytes) for b in memory.at_peak}
    assert sum(n for *_, n in at_peak) == max(memory.live_bytes)
    assert memory.live_bytes[memory.peak_step] == max(memory.live_bytes)
    text = repr(memory)
    assert text.count("<- peak") == 1
    assert str(memory.peak_bytes) in text


def test_bytes_that_can_be_counted_by_hand():
    memory = pb.jit(lambda x: pb.exp(x) * 2.0).lower(drawn(1000)).memory()
    assert (memory.live_bytes, memory.input_bytes) == ([4000], 4000)
    assert memory.output_bytes == 4032  # in units of 64 bytes
    assert memory.arena_bytes == 0

    def kept(x, w):  # the first product is needed until the last step
        first = x @ w
        for _ in range(3):
            x = pb.sort(x @ w, axis=0)
        return first + x

    memory = pb.jit(kept).lower(drawn(512, 512), drawn(512, 512)).memory()
    assert min(memory.live_bytes[1:]) >= 2 * 4 * 512 * 512  # besides it, what is worked on


def test_the_page(tmp_path):
    f, args = PROGRAMS["network"]
    memory = pb.jit(f).lower(*args).memory()
    memory.save(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert page == memory.html() == memory._repr_html_()
    assert page.count('<rect class="block') == len(memory.blocks)
    svg = page[page.index("<svg") : page.index("</svg>") + 6]
    assert len(ElementTree.fromstring(svg)) >= len(memory.blocks)
    assert "<script" not in page and "http" not in page.replace("http://www.w3.org", "")


def test_the_ladder_says_what_budgets_lead_to():
    f, args = PROGRAMS["network"]
    memory = pb.jit(f).lower(*args).memory()
    peaks, times = zip(*memory.ladder, strict=True)
    assert memory.ladder[0] == (memory.peak_bytes, 1.0)
    assert list(peaks) == sorted(peaks, reverse=True)
    assert list(times) == sorted(times)
    assert len(peaks) > 2
    for budget in (memory.peak_bytes, memory.peak_bytes - 1, peaks[1], peaks[-1]):
        way = memory.within(budget)
        assert way is not None
        lowered = pb.jit(f, memory=budget).lower(*args)
        assert lowered.peak_bytes == way.peak_bytes <= budget
        assert lowered.memory().ladder == memory.ladder
    assert memory.within(peaks[-1] - 1) is None
    page = pb.jit(f, memory=peaks[-1]).lower(*args).memory().html()
    assert "What each budget costs in time" in page
    assert "impossible" in page
    assert page.count("<svg") == 3
    lone = pb.jit(lambda x: pb.exp(x) * 2.0).lower(drawn(1000)).memory()
    assert lone.ladder == [(lone.peak_bytes, 1.0)]
    assert lone.html().count("<svg") == 1


def test_nothing_to_compute():
    lowered = pb.jit(lambda x: x).lower(drawn(3))
    assert lowered.peak_bytes == 0
    with pytest.raises(pb.TraceError, match="memory: `<lambda>` has nothing to compute"):
        lowered.memory()
