"""`pullback bench nn`: the workloads agree across libraries, and are of the sizes promised."""

import numpy as np
import pytest

from benchmarks import nn_programs, rivals
from benchmarks.libraries import LIBRARIES
from benchmarks.nn_workloads import NN_WORKLOADS, layer_of
from benchmarks.workloads import WORKLOADS, leaves


def outputs(library, name: str) -> list[np.ndarray]:
    arguments = library.prepared(name, NN_WORKLOADS[name].arrays(quick=True))
    result = nn_programs.program(library, name)(*arguments)
    return [library.host(x) for x in leaves(result)]


@pytest.mark.parametrize("name", [n for n in NN_WORKLOADS if nn_programs.is_there(n)])
def test_ours_agrees_with_torch(ours, name):
    pytest.importorskip("torch")
    if name == "nn.attention_second":
        with pytest.raises(RuntimeError, match="not implemented"):
            outputs(LIBRARIES["torch"](1), name)
        return
    found = {"pullback": outputs(ours, name), "torch": outputs(LIBRARIES["torch"](1), name)}
    assert max(rivals.deviations(found).values()) < 1e-4


def test_sizes_and_names():
    assert not set(NN_WORKLOADS) & set(WORKLOADS)
    shapes = {
        "nn.conv2d": [(32, 64, 56, 56), (64, 64, 3, 3)],
        "nn.conv1d": [(32, 128, 4096), (128, 128, 9)],
        "nn.depthwise": [(32, 64, 56, 56), (64, 1, 3, 3)],
        "nn.attention": [(1, 8, 1024, 64)] * 3,
    }
    for name, wanted in shapes.items():
        layer, second = layer_of(name)
        arrays = layer.arrays(np.random.default_rng(0), layer.sizes)
        assert [a.shape for a in arrays] == wanted and not second
    assert layer_of("nn.lstm_second")[1]
