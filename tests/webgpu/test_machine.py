"""Long chains of float64 on pairs of words, which kernels compute in a loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from cuda_registry import same_bits
from pullback.core.dtypes import float64
from pullback.ir.scalar import load
from pullback.runtime.webgpu.machine import Machine, is_long
from pullback.runtime.webgpu.printer import Source, emit
from webgpu_device import needs_adapter

LARGE = np.linspace(-3e5, 3e5, 301).astype(np.float32)
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "sine": lambda x: pb.sin(x),
    "power": lambda x: pb.abs(x) ** 1.3,
    "slope": pb.grad(lambda x: pb.sin(x).sum()),
}


@needs_adapter
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_loop_has_the_bits_of_the_cpu(name: str) -> None:
    function = pb.jit(FUNCTIONS[name])
    found = function(pb.tensor(LARGE, device="webgpu"))
    assert same_bits(found.numpy(), function(pb.tensor(LARGE)).numpy())


def test_a_function_stands_once_however_often_it_is_needed() -> None:
    x = load(0, float64)
    total = x
    for k in range(40):
        total = total * x + (k + 0.5)
    source = Source()
    lines, _ = emit(source, [total], lambda e: "given")
    text = "\n".join(lines)
    assert text.count("f64_mul(") == text.count("f64_add(") == 1
    assert "pb_zero()" in text  # the compiler can't write the loop out
    few, _ = emit(Source(), [x * x + x], lambda e: "given")
    assert not any("switch" in line for line in few)


def test_registers_are_used_again() -> None:
    x = load(0, float64)
    nodes = [x + x]
    for _ in range(50):
        nodes.append(nodes[-1] * x)
    assert is_long(nodes)
    machine = Machine(nodes, {x: "given"}, [nodes[-1]], lambda e, names: f"f({', '.join(names)})")
    assert machine.count == 2
