"""Several devices: mixing them is an error that says so. A second device is made up by registering
the CPU twice.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import pullback as pb
from pullback.core import avals
from pullback.runtime.cpu.target import CpuRuntime


@pytest.fixture
def twin():
    avals.register_runtime("twin", lambda index: CpuRuntime())
    yield pb.device("twin")
    avals._loaders.pop("twin")
    avals._devices.pop(("twin", 0))


def test_mixed_devices_are_refused_by_every_kind_of_operation(twin):
    x, y = pb.tensor([1.0, 2.0]), pb.tensor([3.0, 4.0], device=twin)
    for call in (
        lambda: x + y,
        lambda: pb.where(x > 0, x, y),
        lambda: pb.concat([x, y]),
        lambda: x @ y,
        lambda: pb.take(x, pb.tensor([0], device=twin), axis=0),
    ):
        with pytest.raises(
            pb.DeviceError, match=r"different devices, got cpu and twin:0.*to_device"
        ):
            call()


def test_numbers_follow_the_array(twin):
    y = pb.tensor([3.0], device=twin)
    assert (y * 2.0).device is twin and (1.0 / y).device is twin
    assert y.to_device("cpu").device is pb.device("cpu")


def test_default_device_is_a_block(twin):
    with twin:
        assert pb.tensor([1.0]).device is twin and pb.zeros((2,)).device is twin
    assert pb.tensor([1.0]).device is pb.device("cpu")
    pb.set_default_device(twin)
    try:
        assert pb.arange(3).device is twin
    finally:
        pb.set_default_device("cpu")


def test_derivatives_stay_on_their_device(twin):
    x = pb.tensor([1.0, 2.0], device=twin, requires_grad=True)
    (x * x).sum().backward()
    assert x.grad.device is twin and x.grad.tolist() == [2.0, 4.0]


def test_a_missing_gpu_is_an_error_that_says_what_was_looked_for():
    if pb.device("cuda") in avals.devices():
        pytest.skip("there is a GPU")
    with pytest.raises(
        pb.DeviceError, match=r"cuda: CuPy was not found|cuda: looked for an NVIDIA"
    ):
        pb.ones(3, device="cuda")


def test_threads_that_ask_for_a_device_first_share_it():
    made = []

    def load(index: int) -> CpuRuntime:
        time.sleep(0.02)
        made.append(index)
        return CpuRuntime()

    avals.register_runtime("third", load)
    try:
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda _: pb.device("third").runtime, range(4)))
        assert len(made) == len(set(map(id, found))) == 1
    finally:
        avals._loaders.pop("third")
        avals._devices.pop(("third", 0))
