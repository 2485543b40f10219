"""Launches that may begin early: what the driver is told."""

from __future__ import annotations

import ctypes

import pytest

from pullback.runtime.cuda.scatter import overlap


@pytest.fixture
def calls(monkeypatch):
    """What a driver that stands in for CUDA's was called with."""
    seen = []

    def launch(config, function, arguments, extra):
        found = overlap._Config.from_address(config)
        seen.append((tuple(found.sizes), found.stream, function, arguments, extra))
        attribute = found.attributes[0]
        assert (found.count, attribute.id, attribute.value) == (1, 6, 1)
        return 0 if arguments else 701

    monkeypatch.setattr(overlap, "_driver", lambda: launch)
    return seen


def test_structs_are_laid_out_as_in_cuda_h():
    offsets = [getattr(overlap._Config, name).offset for name in ("sizes", "stream", "attributes")]
    assert [*offsets, overlap._Config.count.offset] == [0, 32, 40, 48]
    assert ctypes.sizeof(overlap._Config) == 56
    assert (overlap._Attribute.value.offset, ctypes.sizeof(overlap._Attribute)) == (8, 72)


def test_each_stream_has_its_own_configuration(calls):
    sizes = (1, 2, 3, 4, 5, 6, 7)
    launch = overlap.overlapping(11, sizes)
    assert launch is not None
    for stream in (70, 80, 70):
        launch(stream, 90)
    assert calls == [(sizes, stream, 11, 90, None) for stream in (70, 80, 70)]


def test_a_launch_that_the_driver_refuses(calls):
    launch = overlap.overlapping(11, (1,) * 7)
    assert launch is not None
    with pytest.raises(overlap.LaunchError, match="error 701"):
        launch(70, 0)


def test_a_machine_without_the_driver(monkeypatch):
    monkeypatch.setattr(overlap, "_driver", lambda: None)
    assert overlap.overlapping(11, (1,) * 7) is None
