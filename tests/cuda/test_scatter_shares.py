"""Exact sums whose buckets several thread blocks share out, in either order of threads."""

from __future__ import annotations

import pytest

from cuda_emulator import COMPILER
from pullback.compile.kernel.fixed_point import exact_scatter_add_reference
from pullback.runtime.cuda.scatter import buckets
from scatter_emulated import device, draw, same_bits, scattered

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no g++")
assert device  # a fixture


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_more_shares_than_tiles(
    width: int, backwards: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One row has most updates, and a device many processors: its bucket has but three tiles."""
    monkeypatch.setattr(buckets, "PROCESSORS", 40)
    if backwards:
        monkeypatch.setenv("PULLBACK_EMULATED_BACKWARDS", "1")
    indices, values, out = draw("float32", 2600, 90, width)
    indices[: 2600 * 3 // 4] = 7
    found = scattered(indices, values, out, strategy="buckets")
    same_bits(found, exact_scatter_add_reference(indices, values, out))
