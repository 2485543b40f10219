"""Settings of the runtime tests: live memory changes by what a test does, and by nothing else."""

import gc

import pytest


@pytest.fixture(autouse=True)
def no_garbage():
    """Garbage of earlier tests goes before the test, none of it while the test counts bytes."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(params=[1, 2, 3])
def thread_count(request, threads):
    """Runs the test on so many native threads."""
    threads(request.param)
    return request.param
