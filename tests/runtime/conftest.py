"""Settings of the runtime tests."""

import gc

import pytest


@pytest.fixture(scope="module")
def settled():
    """What earlier modules left is gone or not looked at: collecting is quick from here on."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def no_garbage(settled):
    """Live memory changes by what the test does, and by nothing else: garbage of earlier tests goes
    before it, none while it counts bytes.
    """
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(params=[1, 2, 3])
def thread_count(request, threads):
    """Runs the test on so many native threads."""
    threads(request.param)
    return request.param
