"""`pb.Module`: a class that is a tree of its arrays, for every transform and optimiser."""

from __future__ import annotations

from typing import Any

import pytest

import pullback as pb
from pullback.core import pytrees

KEY = pb.random.key(0)


class Block(pb.Module):
    buffers = ("count",)

    def __init__(self, width: int, key: Any):
        self.linear = pb.nn.Linear(width, width, key=key)
        self.scale = pb.ones(width)
        self.count = pb.zeros((), dtype="int64")
        self.name = "block"

    def __call__(self, x: Any) -> Any:
        self.count = self.count + 1
        return pb.tanh(self.linear(x)) * self.scale


class Net(pb.Module):
    def __init__(self, width: int = 3, key: Any = KEY):
        keys = pb.random.split(key, 3)
        self.blocks = [Block(width, keys[0]), "not an array", Block(width, keys[1])]
        self.heads = {"out": pb.nn.Linear(width, 1, key=keys[2])}
        self.activation = pb.nn.relu

    def __call__(self, x: Any) -> Any:
        for block in self.blocks[::2]:
            x = block(x)
        return self.heads["out"](self.activation(x))


def loss(net: Any, x: Any) -> Any:
    return pb.mean(net(x) ** 2)


X = pb.reshape(pb.arange(12, dtype="float32") / 12, (4, 3))
NAMES = [
    "blocks.0.linear.weight", "blocks.0.linear.bias", "blocks.0.scale", "blocks.0.count",
    "blocks.2.linear.weight", "blocks.2.linear.bias", "blocks.2.scale", "blocks.2.count",
    "heads.out.weight", "heads.out.bias",
]  # fmt: skip


def same(a: Any, b: Any) -> bool:
    pairs = zip(pytrees.leaves(a), pytrees.leaves(b), strict=True)
    return all(x.dtype == y.dtype and bool(pb.all(x == y)) for x, y in pairs)


def test_a_module_is_a_tree_of_its_arrays() -> None:
    net = Net()
    assert pytrees.leaf_names(pytrees.flatten(net)[1]) == NAMES
    assert [n for n in NAMES if "count" not in n] == list(net.named_parameters())
    copy = pb.map_tree(lambda x: x, net)
    assert type(copy) is Net and copy.blocks[1] == "not an array" and copy.activation is pb.nn.relu
    assert pytrees.flatten(net)[1] == pytrees.flatten(Net(key=pb.random.key(1)))[1]
    net.blocks[0].name = "other"
    assert pytrees.flatten(net)[1] != pytrees.flatten(Net())[1]


def test_gradients_are_modules_and_buffers_have_none() -> None:
    net = Net()
    gradient = pb.grad(loss)(net, X)
    assert type(gradient) is Net
    for name, g in gradient.state_dict().items():
        p = net.state_dict()[name]
        assert g.shape == p.shape and g.dtype == p.dtype
        assert bool(pb.any(g != 0)) == ("count" not in name)
    by_dict = pb.grad(lambda w: loss(_with(net, "heads.out.weight", w), X))(net.heads["out"].weight)
    assert same(by_dict, gradient.heads["out"].weight)
    assert int(net.blocks[0].count) == 0  # the transform works on a copy


def _with(net: Any, name: str, value: Any) -> Any:
    leaves, structure = pytrees.flatten(net)
    leaves[NAMES.index(name)] = value
    return pytrees.unflatten(structure, leaves)


def test_jit_compiles_a_module_once_and_its_structure_anew() -> None:
    traces = []

    def counted(net: Any, x: Any) -> Any:
        traces.append(1)
        return loss(net, x)

    compiled = pb.jit(pb.value_and_grad(counted))
    first = compiled(Net(), X)
    second = compiled(Net(key=pb.random.key(1)), X)
    assert len(traces) == 1
    assert not same(first, second)
    eager = pb.value_and_grad(loss)(Net(), X)
    for a, b in zip(pytrees.leaves(first), pytrees.leaves(eager), strict=True):
        assert bool(pb.all(pb.abs(a - b) <= 1e-6 * (1 + pb.abs(b))))
    other = Net()
    other.activation = pb.nn.sigmoid
    compiled(other, X)
    assert len(traces) == 2


OPTIMISERS = [
    pb.optim.Adam(lr=0.1),
    pb.optim.SGD(lr=0.1, momentum=0.9),
    pb.optim.LAMB(lr=0.1),
    pb.optim.Lookahead(pb.optim.Adam(lr=0.1), k=2),
]


@pytest.mark.parametrize("opt", OPTIMISERS, ids=lambda o: type(o).__name__)
def test_optimisers_step_modules_and_leave_what_is_fixed(opt: Any) -> None:
    net = Net().freeze("heads", "blocks.0.linear.bias")
    state = opt.init(net)
    now = net
    for _ in range(3):
        now, state = opt.step(now, pb.grad(loss)(now, X), state)
    assert type(now) is Net
    for name, p in now.state_dict().items():
        fixed = "count" in name or name.startswith("heads") or name == "blocks.0.linear.bias"
        assert same(p, net.state_dict()[name]) == fixed, name
    assert float(loss(now, X)) < float(loss(net, X))


def test_lbfgs_and_clipping_leave_what_is_fixed() -> None:
    net = Net().freeze("heads")
    found, _ = pb.optim.LBFGS(max_iter=5).minimize(lambda n: loss(n, X), net)
    assert same(found.heads, net.heads) and not same(found.blocks[0], net.blocks[0])
    gradient = pb.grad(loss)(net, X)
    clipped, norm = pb.optim.clip_grad_norm(gradient, 1e-3)
    assert float(pb.optim.global_norm(clipped)) <= 1.01e-3 < float(norm)
    assert clipped.blocks[0].count.dtype == pb.int64


def test_frozen_parts_have_no_gradient() -> None:
    net = Net().freeze("blocks.0")
    gradient = pb.grad(loss)(net, X)
    assert not any(bool(pb.any(g != 0)) for g in pytrees.leaves(gradient.blocks[0]))
    assert bool(pb.any(gradient.blocks[2].linear.weight != 0))
    thawed = net.unfreeze()
    assert list(thawed.named_parameters()) == list(Net().named_parameters())
    assert Net().freeze().parameters() == []
    with pytest.raises(pb.GradientError, match=r"freeze: there are no arrays under 'block'"):
        net.freeze("block")


def test_freezing_copies_handles() -> None:
    net = Net()
    frozen = net.freeze("heads")
    frozen.blocks[0].scale += 1
    assert bool(pb.all(net.blocks[0].scale == 1))


def test_one_handle_in_two_places_is_one_parameter() -> None:
    class Tied(pb.Module):
        def __init__(self) -> None:
            self.embedding = pb.nn.Embedding(5, 4, key=KEY)
            self.head = pb.nn.Linear(4, 5, bias=False, key=KEY)
            self.head.weight = self.embedding.weight

        def __call__(self, i: Any) -> Any:
            return self.head(self.embedding(i))

    net, i = Tied(), pb.tensor([1, 1, 3])
    assert list(net.named_parameters()) == ["embedding.weight"]
    gradient = pb.grad(lambda n: pb.sum(n(i) ** 2))(net)
    assert gradient.head.weight is gradient.embedding.weight
    table = net.embedding.weight

    def by_table(w: Any) -> Any:
        return pb.sum((w[i] @ w.T) ** 2)

    expected = pb.grad(by_table)(table)
    assert bool(pb.all(pb.abs(gradient.head.weight - expected) < 1e-4))
    opt = pb.optim.SGD(lr=0.1)
    stepped, _ = opt.step(net, gradient, opt.init(net))
    assert stepped.head.weight is stepped.embedding.weight


def test_running_statistics_come_back_as_aux() -> None:
    net = pb.nn.Sequential(pb.nn.Linear(3, 3, key=KEY), pb.nn.BatchNorm1d(3), pb.nn.Dropout(0.5))

    def step(net: Any, x: Any, key: Any) -> Any:
        return pb.sum(net(x, training=True, key=key) ** 2), net

    derive = pb.value_and_grad(step, has_aux=True)
    (value, eager), gradient = derive(net, X, KEY)
    (jitted_value, jitted), _ = pb.jit(derive)(net, X, KEY)
    assert int(eager[1].num_batches_tracked) == int(jitted[1].num_batches_tracked) == 1
    assert bool(pb.all(pb.abs(eager[1].running_mean - jitted[1].running_mean) < 1e-6))
    assert int(net[1].num_batches_tracked) == 0
    assert abs(float(value) - float(jitted_value)) < 1e-4
    assert bool(pb.all(gradient[1].running_mean == 0))
    assert not any(x.requires_grad for x in pytrees.leaves(eager))


def test_a_module_is_saved_and_loaded(tmp_path: Any) -> None:
    path = tmp_path / "net.safetensors"
    net = Net()
    opt = pb.optim.Adam(lr=0.1)
    trained, state = opt.step(net, pb.grad(loss)(net, X), opt.init(net))
    pb.save(path, {"net": trained, "opt": state, "key": KEY})
    blank = Net(key=pb.random.key(9))
    back = pb.load(path, like={"net": blank, "opt": opt.init(blank), "key": KEY})
    assert same(back, {"net": trained, "opt": state, "key": KEY})


def test_what_a_module_shows() -> None:
    net = Net().freeze("blocks.2")
    lines = net.summary().split("\n")
    assert lines[0].split() == ["name", "shape", "dtype", "elements"]
    assert [line.split()[0] for line in lines[1:-1]] == NAMES
    assert lines[-1] == "19 parameters and 17 fixed elements, 152 bytes"
    shown = repr(net)
    assert "0: Block(" in shown and "weight=float32[3, 3]" in shown and "activation=relu" in shown


def test_layers_refuse_what_does_not_fit() -> None:
    cases = [
        (lambda: pb.nn.Conv2d(3, 4, (1, 2, 3), key=KEY), pb.ShapeError, "kernel_size"),
        (lambda: pb.nn.Conv1d(3, 4, 1, groups=2, key=KEY), pb.ShapeError, "groups must divide"),
        (lambda: pb.nn.GroupNorm(2, 3), pb.ShapeError, "num_groups must divide"),
        (lambda: pb.nn.BatchNorm2d(3)(pb.ones((2, 3))), pb.ShapeError, "expected 4 dimensions"),
        (lambda: pb.nn.MultiheadAttention(8, 3, key=KEY), pb.ShapeError, "must divide embed_dim"),
        (lambda: pb.nn.Softmax(dims=1), pb.DTypeError, "missing .* 'dim'. It takes dim, dtype"),
        (lambda: pb.nn.Dropout(0.5)(pb.ones(2), training=True), pb.DTypeError, "key"),
        (
            lambda: pb.nn.TransformerEncoderLayer(4, 2, activation="swish", key=KEY),
            pb.DTypeError,
            "activation must be",
        ),
        (lambda: pb.nn.init.gain("reluu"), pb.DTypeError, "unknown nonlinearity"),
        (lambda: pb.nn.init.kaiming_normal(KEY, (3,)), pb.ShapeError, "at least two axes"),
    ]
    for call, error, words in cases:
        with pytest.raises(error, match=words):
            call()


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_initialisers_have_the_spread_they_promise(dtype: str) -> None:
    shape = (200, 50)
    spreads = {
        "kaiming_normal": (2 / 50) ** 0.5,
        "kaiming_uniform": (2 / 50) ** 0.5,
        "xavier_normal": (2 / 250) ** 0.5,
        "xavier_uniform": (2 / 250) ** 0.5,
        "truncated_normal": 0.8796,  # of a standard normal between -2 and 2
    }
    for name, spread in spreads.items():
        x = getattr(pb.nn.init, name)(KEY, shape, dtype=dtype)
        assert x.dtype == getattr(pb, dtype) and x.shape == shape
        wide = pb.astype(x, "float64")
        assert abs(float(pb.std(wide)) / spread - 1) < 0.02, name
        assert abs(float(pb.mean(wide))) < 0.03 * spread, name
