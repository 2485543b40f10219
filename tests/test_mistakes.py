"""Mistakes that users of NumPy, PyTorch and JAX make in their first days, and what they are told.

Those of single operations are in `test_messages`. To add one, add a line: the call, the class, and
words of the message.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pullback as pb
import pullback.nn
from mistakes import check, set_item
from pullback import train
from pullback.missing_names import METHOD_HINTS

KEY = pb.random.key(0)
NET = pb.nn.Linear(4, 2, key=KEY)


def inplace(a: Any, b: Any) -> None:
    a += b


MISTAKES = [
    ("pb.sum(x, axis=0, dim=1)", TypeError, "dim and axis are one argument, got both."),
    ("pb.tensor(1, 2, 3)", pb.DeviceError, "device: unknown device, got 3."),
    ("x()", TypeError, "'Tensor' object is not callable"),
    ("x.fooo", AttributeError, "'Tensor' object has no attribute 'fooo'"),
    ("x.summ", AttributeError, "'Tensor' object has no attribute 'summ'"),
    ("x.cuda()", AttributeError, "'Tensor' object has no attribute 'cuda'. Use"),
    ("x.expand(3, 4)", AttributeError, "'Tensor' object has no attribute 'expand'. Use"),
    ("x.fill_(3)", AttributeError, "'Tensor' object has no attribute 'fill_'. Use x[...] ="),
    ("x.add_(3)", AttributeError, "'Tensor' object has no attribute 'add_'. Use x += y."),
    ("x.dot(y)", pb.ShapeError, "matmul: the inner sizes differ, got shapes (3, 4) and (5, 6)."),
    ("pb.ones((2, 3, 4)).dot(x)", pb.ShapeError, "dot: takes vectors and matrices, got shapes"),
    ("v.requires_grad_()", AttributeError, "'Tensor' object has no attribute 'requires_grad_'."),
    ("x.std(unbiased=False)", TypeError, "std() got an unexpected keyword argument 'unbiased'."),
    ("x.transpose(0, 1)", pb.ShapeError, "transpose: two axes mean a permutation in NumPy and"),
    ("x.argmax((0, 1))", pb.DTypeError, "argmax: axis must be an integer or None, got (0, 1)."),
    ('x.repeat("a")', pb.DTypeError, "repeat: repeats must be integers, got 'a'."),
    ("x.topk(-1)", pb.ShapeError, "topk: k must be between 0 and 4, the size of the axis, got"),
    ("x.masked_fill(x, 1)", pb.DTypeError, "masked_fill: the mask must be bool, got float32."),
    ("x.masked_fill(b, 1)", pb.ShapeError, "masked_fill: shapes do not broadcast, got (3, 4)"),
    ("x.permute(0)", pb.ShapeError, "permute_dims: axes must name every axis once, got (0,) for"),
    ('x.reshape("a")', pb.DTypeError, "reshape: a shape is made of integers, got 'a'."),
    ("x.view(5, 5)", pb.ShapeError, "reshape: an array of shape (3, 4) has 12 elements, which"),
    ("x.squeeze(5)", pb.AxisError, "squeeze: axis 5 is out of range for an array with 2"),
    ("x.unsqueeze(5)", pb.AxisError, "expand_dims: axis 5 is out of range for an array with 3"),
    ("x.take([0.5], axis=0)", pb.DTypeError, "take: indices must be integers, got float32."),
    ('x.astype("complex")', pb.DTypeError, "astype: unknown dtype, got 'complex'. Use one of"),
    ('x.to("float33")', pb.DeviceError, "device: unknown device, got 'float33'."),
    ("x + [1, 2]", TypeError, "unsupported operand type(s) for +: 'Tensor' and 'list'"),
    ('x + "a"', TypeError, "unsupported operand type(s) for +: 'Tensor' and 'str'"),
    ('x @ "a"', TypeError, "unsupported operand type(s) for @: 'Tensor' and 'str'"),
    ("x @ x", pb.ShapeError, "matmul: the inner sizes differ, got shapes (3, 4) and (3, 4)."),
    ("x / None", TypeError, "unsupported operand type(s) for /: 'Tensor' and 'NoneType'"),
    ('x < "a"', TypeError, "'<' not supported between instances of 'Tensor' and 'str'"),
    ("x == y", pb.ShapeError, "equal: shapes do not broadcast, got (3, 4) and (5, 6). Sizes"),
    ("-b", pb.DTypeError, "negative: expected an integer or floating or complex dtype, got bool."),
    ("b - b", pb.DTypeError, "subtract: expected an integer or floating or complex dtype, got"),
    ("v & b", pb.DTypeError, "bitwise_and: expected a bool or integer dtype, got float32. Cast"),
    ("n**-1", pb.DTypeError, "pow: integers have no negative power, got -1 beside int64."),
    ("x and y", pb.ShapeError, "bool: expected a tensor with one element, got shape (3, 4)."),
    ("x in y", pb.ShapeError, "equal: shapes do not broadcast, got (5, 6) and (3, 4). Sizes"),
    ('v["a":]', IndexError, "getitem: slice indices must be integers or None or have an"),
    ("v[1.5:]", IndexError, "getitem: slice indices must be integers or None or have an"),
    ("v[[True, False]]", IndexError, "getitem: a boolean index must have the shape of the axes"),
    ("v[v > 1, 0]", IndexError, "getitem: too many indices, got 2 for an array with 1"),
    ("s[0]", IndexError, "getitem: too many indices, got 1 for an array with 0 dimensions."),
    ("list(s)", pb.DTypeError, "len: a 0-d tensor has no length."),
    ("set_item(v, b, pb.ones(3))", pb.ShapeError, "setitem: a value of shape (3,) does not"),
    ("inplace(n, 1.5)", pb.DTypeError, "__iadd__: the result has dtype float32, which does not"),
    ("inplace(v, x)", pb.ShapeError, "add: shapes do not broadcast, got (3,) and (3, 4). Sizes"),
    ("t.detach().backward()", pb.GradientError, "backward: the output does not depend on any"),
    ("v.register_hook(print)", pb.GradientError, "register_hook: the tensor does not require a"),
    ('"%d" % v', pb.ShapeError, "int: expected a tensor with one element, got shape (3,)."),
    ('f"{s:.2q}"', ValueError, "Unknown format code 'q' for object of type 'float'"),
    ("pb.zeros(3, 4)", TypeError, "zeros() takes 1 positional argument but 2 were given. A"),
    ('pb.zeros((2, "a"))', pb.DTypeError, "zeros: a shape is made of integers, got 'a'."),
    ("pb.zeros(None)", pb.DTypeError, "zeros: a shape is made of integers, got None."),
    ("pb.full(3)", TypeError, "full() missing 1 required positional argument: 'fill_value'"),
    ("pb.full((2,), [1, 2, 3])", pb.ShapeError, "full: a value of shape (3,) does not broadcast"),
    ("pb.arange(0, 1, 1e-12)", MemoryError, "cpu: out of memory, got a request for"),
    ("pb.ones((10**6, 10**6)) + 1", MemoryError, "cpu: out of memory, got a request for"),
    ("pb.linspace(0, 1)", TypeError, "linspace() missing 1 required positional argument: 'num'"),
    ('pb.zeros(3, device="gpu")', pb.DeviceError, "device: unknown device, got 'gpu'."),
    ("pb.array([1, 2], dtype=object)", pb.DTypeError, "tensor: unknown dtype, got <class"),
    ('pb.tensor(np.array(["a"]))', pb.DTypeError, "tensor: elements must be numbers or"),
    ("pb.tensor([v, x])", pb.ShapeError, "tensor: the nested lists are ragged. Every row must"),
    ("pb.tensor(2**63)", pb.DTypeError, "tensor: 9223372036854775808 does not fit int64. Cast"),
    ('pb.tensor(300, dtype="uint8")', pb.DTypeError, "tensor: 300 does not fit uint8. Cast the"),
    ("pb.concat(3)", pb.DTypeError, "concat: expected a sequence of arrays, got int."),
    ('pb.stack([x, "a"])', pb.DTypeError, "stack: expected an array, a number or a nested list,"),
    ("pb.where(b)", TypeError, "where() missing 2 required positional arguments: 'x' and 'y'"),
    ("pb.where(b, x, x)", pb.ShapeError, "where: shapes do not broadcast, got (3,) and (3, 4)"),
    ("pb.max(v, v)", pb.DTypeError, "max: an axis must be an integer, got Tensor."),
    ('pb.einsum("ij->jj", x)', pb.ShapeError, "einsum: an output label is repeated, got"),
    ("pb.histogram(v, bins=-1)", pb.ShapeError, "histogram: there must be at least one bin, got"),
    ("pb.bincount(-n)", IndexError, "bincount: numbers must not be negative, got -1 at element"),
    ("pb.interp(v, v, x)", pb.ShapeError, "interp: needs as many values as places, both 1-D,"),
    ("pb.meshgrid(x, x)", pb.ShapeError, "meshgrid: takes 1-D arrays, got shape (3, 4)."),
    ("pb.outer(x, x)", pb.ShapeError, "outer: expected two vectors, got shapes (3, 4) and (3,"),
    ("pb.segment_sum(v, v, 3)", pb.DTypeError, "segment_sum: indices must be integers, got"),
    ("pb.fft.fft(v, n=0)", pb.ShapeError, "fft: n must be at least 1, got 0. A transform has a"),
    ("pb.fft.rfft(pb.tensor([1j]))", pb.DTypeError, "rfft: expected a real dtype, got"),
    ("pb.linalg.lstsq(x, y)", pb.ShapeError, "lstsq: the right-hand side needs a row for each"),
    ("pb.linalg.norm(v)", AttributeError, "module 'pullback.linalg' has no attribute 'norm'. Use"),
    ("pb.dot(v, v)", AttributeError, "module 'pullback' has no attribute 'dot'. Use pb.matmul,"),
    ("pb.norm(v)", AttributeError, "module 'pullback' has no attribute 'norm'. Use"),
    ("pb.manual_seed(0)", AttributeError, "module 'pullback' has no attribute 'manual_seed'. Use"),
    ("pb.from_numpy(a)", AttributeError, "module 'pullback' has no attribute 'from_numpy'. Use"),
    ("pb.sigmoud(v)", AttributeError, "module 'pullback' has no attribute 'sigmoud'. Did you"),
    ("pb.sofmax(v)", AttributeError, "module 'pullback' has no attribute 'sofmax'. Did you mean"),
    ("pb.Linear(3, 4)", AttributeError, "module 'pullback' has no attribute 'Linear'. Use"),
    ("pb.nothing", AttributeError, "module 'pullback' has no attribute 'nothing'."),
    ("pb.grad(lambda x: x.sum().item())(v)", pb.GradientError, "grad: the function must return"),
    ("pb.grad(lambda x: np.asarray(x).sum())(v)", pb.GradientError, "numpy: the tensor requires"),
    ("pb.grad(lambda x: (x.sum(), x))(v)", pb.GradientError, "grad: the function must return a"),
    ("pb.grad(lambda x: x.sum(), has_aux=True)(v)", pb.GradientError, "grad: with has_aux the"),
    ("pb.grad(lambda x: x.sum())(None)", pb.GradientError, "grad: the arguments to"),
    ("pb.grad(lambda x: x.sum())([v, 3])", pb.DTypeError, "grad: can't differentiate by an"),
    ('pb.grad(lambda w: w["c"].sum())({"a": v})', KeyError, "'c'"),
    ("pb.jvp(pb.sin, v, v)", pb.DTypeError, "jvp: the arguments must be a tuple, got Tensor."),
    ("pb.hvp(pb.sum, v, v)", pb.DTypeError, "hvp: the arguments must be a tuple, got Tensor."),
    ("pb.vjp(pb.sin)", pb.GradientError, "vjp: the arguments to differentiate by hold no arrays."),
    ("pb.hessian(lambda x: x)(v)", pb.GradientError, "hessian: the function must return a real"),
    ("pb.jit(lambda x: x.item())(s)", pb.TraceError, "item: a traced tensor has no value yet,"),
    ("pb.jit(lambda x: x[x > 1])(v)", pb.DTypeError, "getitem: a traced mask has no values yet,"),
    ("pb.jit(lambda x: pb.zeros(x))(pb.tensor(3))", pb.TraceError, "zeros: a shape can't depend"),
    ("pb.jit(lambda x: pb.unique_values(x))(v)", pb.DTypeError, "unique_values: the size of the"),
    ("pb.jit(lambda x: x.tolist())(v)", pb.TraceError, "numpy: a traced tensor has no value"),
    ("pb.vmap(lambda x: x.sum(), in_axes=1)(v)", pb.ShapeError, "vmap: args[0] has no axis 1 to"),
    ("pb.vmap(lambda x, y: x, in_axes=(0,))(v, v)", pb.ShapeError, "vmap: in_axes needs one"),
    ("pb.vmap(lambda x: x if x > 0 else 0)(v)", pb.TraceError, "bool: a traced tensor has no"),
    ('pb.vmap(lambda x: x, in_axes="a")(v)', pb.DTypeError, "vmap: in_axes is made of integers"),
    ("pb.scan(v, s, v)", pb.DTypeError, "scan: f must be a function, got Tensor."),
    ("pb.scan(lambda c: (c, c), s, v)", TypeError, "<lambda>() takes 1 positional argument but"),
    ("pb.scan(lambda c, x: (c, x), s, [v, pb.ones(4)])", pb.ShapeError, "scan: xs[1] must have"),
    ("pb.fori_loop(0, 3, lambda c: c, s)", TypeError, "<lambda>() takes 1 positional argument"),
    ("pb.cond(True, 3, pb.cos, v)", pb.DTypeError, "cond: true_fn must be a function, got int."),
    ("pb.custom_vjp(3)", pb.DTypeError, "custom_vjp: expected a function, got int."),
    ("pb.checkpoint(3)", pb.DTypeError, "checkpoint: expected a function, got int."),
    ("pb.fixed_point(lambda x: x + 1, s)", pb.PullbackError, "fixed_point: the steps must come"),
    ("pb.map_tree(3, v)", pb.DTypeError, "map_tree: expected a function, got int."),
    ("pb.nn.Linear(4, 2)", TypeError, "Linear.__init__() missing 1 required keyword-only"),
    ("pb.nn.Linear(4, 2, key=0)", pb.DTypeError, "split: a key is a uint32 array of shape (2,),"),
    ('pb.nn.Linear("4", 2, key=K)', pb.DTypeError, "Linear: in_features must be an integer, got"),
    ("pb.nn.Linear(4, -2, key=K)", pb.ShapeError, "Linear: out_features must be positive, got"),
    ("pb.nn.Linear(4.0, 2, key=K)", pb.DTypeError, "Linear: in_features must be an integer, got"),
    ("net(pb.ones((3, 5)))", pb.ShapeError, "linear: the weight takes vectors of length 4, got"),
    ('net("a")', pb.DTypeError, "linear: expected an array, a number or a nested list, got str."),
    ("net.weights", AttributeError, "'Linear' object has no attribute 'weights'. Did you mean"),
    ("net.weight.data", AttributeError, "'Tensor' object has no attribute 'data'. Use"),
    ("net.train()", AttributeError, "'Linear' object has no attribute 'train'. Use net(x,"),
    ("net.eval()", AttributeError, "'Linear' object has no attribute 'eval'. Use net(x):"),
    ('net.to("cuda")', AttributeError, "'Linear' object has no attribute 'to'. Use"),
    ("net.load_state_dict({})", AttributeError, "'Linear' object has no attribute"),
    ("net.zero_grad()", AttributeError, "'Linear' object has no attribute 'zero_grad'. Use"),
    ("net.forward(x)", AttributeError, "'Linear' object has no attribute 'forward'. Use net(x),"),
    ('net.freeze("foo")', pb.GradientError, "freeze: there are no arrays under 'foo'. The names"),
    ("pb.nn.Conv2d(3, 8, 0, key=K)", pb.ShapeError, "Conv2d: kernel_size must be positive, got"),
    ("pb.nn.Conv2d(3, 8, 3, key=K)(pb.ones((8, 8, 3)))", pb.ShapeError, "conv2d: a weight of"),
    ("pb.nn.Conv2d(3, 8, 9, key=K)(pb.ones((1, 3, 4, 4)))", pb.ShapeError, "conv2d: the kernel"),
    ("pb.nn.Conv2D(1, 2, 3)", AttributeError, "module 'pullback.nn' has no attribute 'Conv2D'."),
    ("pb.nn.LSTM(3, 0, key=K)", pb.ShapeError, "LSTM: hidden_size must be positive, got 0."),
    ("pb.nn.LSTM(3, 4, key=K)(pb.ones((5, 2, 7)))", pb.ShapeError, "lstm: weight_ih of layer 0"),
    ("pb.nn.Embedding(0, 4, key=K)", pb.ShapeError, "Embedding: num_embeddings must be"),
    ("pb.nn.Embedding(10, 4, key=K)(pb.tensor([10]))", IndexError, "embedding: index 10 is out"),
    ("pb.nn.Embedding(10, 4, key=K)(pb.tensor([1.5]))", pb.DTypeError, "embedding: indices must"),
    ("pb.nn.MultiheadAttention(8, 3, key=K)", pb.ShapeError, "MultiheadAttention: num_heads"),
    ('pb.nn.TransformerEncoderLayer(8, 2, activation="swish", key=K)', pb.DTypeError, "Transform"),
    ("pb.nn.BatchNorm2d(4)(pb.ones((3, 4)))", pb.ShapeError, "BatchNorm2d: expected 4"),
    ("pb.nn.Dropout(2)", pb.ShapeError, "Dropout: p must be a probability in [0, 1], got 2."),
    ("pb.nn.Dropout(0.5)(x, training=True)", pb.DTypeError, "dropout: needs a key while"),
    ("pb.nn.Sequential([net])", pb.DTypeError, "Sequential: layers are modules or functions,"),
    ("pb.nn.Sequential(net, 3)", pb.DTypeError, "Sequential: layers are modules or functions,"),
    ("pb.nn.Softmax()", pb.DTypeError, "Softmax: missing a required argument: 'dim'. It takes"),
    ("pb.nn.CrossEntropyLoss()(x)", pb.DTypeError, "CrossEntropyLoss: takes 2 arrays, got 1."),
    (
        "pb.nn.init.kaiming_normal_(x)",
        AttributeError,
        "Use net.weight = pb.nn.init.kaiming_normal(",
    ),
    (
        "pb.nn.TransformerEncoder(net, 2)",
        AttributeError,
        "Use a list of pb.nn.TransformerEncoderLayer.",
    ),
    (
        "pb.nn.ZeroPad2d((1, 2))",
        pb.ShapeError,
        "ZeroPad2d: padding must be an integer or 4 of them",
    ),
    ("pb.nn.Unflatten(1, (3, -1))(x)", pb.ShapeError, "Unflatten: an axis of size 4 has no sizes"),
    ("pb.nn.ModuleList([net])", AttributeError, "module 'pullback.nn' has no attribute"),
    ("pb.nn.functional.relu(x)", AttributeError, "module 'pullback.nn' has no attribute"),
    ("pb.nn.Lineer(3, 4)", AttributeError, "module 'pullback.nn' has no attribute 'Lineer'. Did"),
    ("pb.nn.cross_entropy(x, v)", pb.ShapeError, "cross_entropy: probabilities must have the"),
    ('pb.nn.gelu(x, approximate="tan")', pb.DTypeError, "gelu: approximate is one of none,"),
    ("opt.step(net, v, {})", pb.ShapeError, "Adam.step: gradients must have the structure of"),
    ("opt.step(v, v)", TypeError, "Optimizer.step() missing 1 required positional argument:"),
    ("opt.init(3)", pb.DTypeError, "Adam.init: parameters must be arrays, got int at params."),
    ("opt.zero_grad()", AttributeError, "'Adam' object has no attribute 'zero_grad'. Use"),
    ("pb.optim.Adam(net.parameters(), lr=0.1)", pb.DTypeError, "Adam: options are given by"),
    ('pb.optim.Adam(lr="a")', pb.DTypeError, "Adam: lr must be a number, got 'a'."),
    ("pb.optim.LBFGS().step(v, v, {})", pb.DTypeError, "LBFGS.step: the loss must be a"),
    ("pb.optim.lr_scheduler", AttributeError, "module 'pullback.optim' has no attribute"),
    ("pb.random.randn(3)", AttributeError, "module 'pullback.random' has no attribute 'randn'."),
    ("pb.random.seed(0)", AttributeError, "module 'pullback.random' has no attribute 'seed'. Use"),
    ("pb.random.key(2**64)", pb.ShapeError, "key: the seed must fit 64 bits, got"),
    ("pb.random.choice(K, v, (5,), replace=False)", pb.ShapeError, "choice: without replacement"),
    ("pb.random.randint(K, (3,), 10, 0)", pb.ShapeError, "randint: low must be below high, got"),
    ('pb.save(v, "/tmp/x")', pb.DTypeError, "save: the first argument is the path of a file,"),
    ('pb.save("/nonexistent/x", v)', FileNotFoundError, "[Errno 2] save: there is no such"),
    ('pb.save("/tmp/q.safetensors", {"f": open})', pb.DTypeError, "save: 'f' must be an array,"),
    ('pb.load("/nonexistent")', FileNotFoundError, "[Errno 2] No such file or directory:"),
    ("pb.load(v)", pb.DTypeError, "load: the first argument is the path of a file, got Tensor."),
    ("train.batches(x, 2.5)", pb.DTypeError, "batches: size must be an integer, got 2.5."),
    ("train.batches(x, 10)", pb.ShapeError, "batches: a batch of 10 rows does not fit in 3 rows."),
    ("train.batches(x, 1, key=3)", pb.DTypeError, "fold_in: a key is a uint32 array of shape"),
    ('train.cast(v, "int32")', pb.DTypeError, "cast: the dtype must be floating, got int32."),
    ('train.computed_in("float99", pb.sin)', pb.DTypeError, "computed_in: unknown dtype, got"),
    ('train.computed_in("int32", pb.sin)', pb.DTypeError, "computed_in: the dtype must be"),
    ("train.fit", AttributeError, "module 'pullback.train' has no attribute 'fit'. Use an"),
    ('train.Checkpoints("/tmp", keep=0)', pb.ShapeError, "Checkpoints: keep must be at least 1,"),
    ("train.EarlyStopping(2).update(v)", pb.ShapeError, "float: expected a tensor with one"),
    ('pb.set_num_threads("a")', pb.DTypeError, "set_num_threads: n must be an integer, got 'a'."),
    ("pb.set_num_threads(0)", pb.ShapeError, "set_num_threads: n must be between 1 and 1024,"),
    ("pb.set_printoptions(precision=2.5)", pb.DTypeError, "set_printoptions: precision must be"),
    ("np.add(x, y)", pb.ShapeError, "add: shapes do not broadcast, got (3, 4) and (5, 6). Sizes"),
    ("np.concatenate([x, v])", pb.ShapeError, "concat: arrays need the same number of"),
    ("a + y", pb.ShapeError, "add: shapes do not broadcast, got (3, 4) and (5, 6). Sizes along"),
    ("pb.optim.LBFGS().step(pb.sum, v, {})", pb.DTypeError, "LBFGS.step: the state must be what"),
    ('train.Log(folder).write(0, loss="a")', pb.DTypeError, "Log.write: loss must be a number,"),
    ("train.Log(folder).write(0, loss=v)", pb.ShapeError, "Log.write: loss must be one number,"),
    ('train.Log(folder).write("a", loss=1)', pb.DTypeError, "Log.write: the step must be an"),
]


def names() -> dict[str, Any]:
    return {
        "np": np, "pb": pb, "train": train, "set_item": set_item, "inplace": inplace, "K": KEY,
        "net": NET, "opt": pb.optim.Adam(lr=0.1), "a": np.ones((3, 4)), "s": pb.tensor(2.0),
        "x": pb.ones((3, 4)), "y": pb.ones((5, 6)), "v": pb.tensor([1.0, 2.0, 3.0]),
        "n": pb.tensor([0, 1, 2]), "b": pb.tensor([True, False, True]),
        "t": pb.tensor([1.0, 2.0, 3.0], requires_grad=True),
    }  # fmt: skip


@pytest.mark.parametrize(("source", "kind", "words"), MISTAKES, ids=[m[0] for m in MISTAKES])
def test_a_mistake_is_named_in_few_lines(
    source: str, kind: type[Exception], words: str, tmp_path: Any
) -> None:
    check(source, kind, words, {**names(), "folder": tmp_path})


def test_python_names_the_method_that_is_close() -> None:
    x: Any = pb.ones(3)
    with pytest.raises(AttributeError) as caught:
        _ = x.summ
    # What Python wants to know to print "Did you mean: 'sum'?".
    assert caught.value.name == "summ" and isinstance(caught.value.obj, pb.Tensor)


def test_names_that_tensors_do_not_have_are_not_listed() -> None:
    x = pb.ones(3)
    assert not set(METHOD_HINTS) & set(dir(x))
    assert not any(hasattr(x, name) for name in METHOD_HINTS)
    assert "__getattr__" not in vars(pb.Tensor)  # which makes every operation slower


def test_there_are_as_many_as_were_promised() -> None:
    sources = [source for source, _, _ in MISTAKES]
    assert len(set(sources)) == len(sources) > 190


def test_an_error_of_the_users_keeps_its_own_frames() -> None:
    def inner(w: Any) -> Any:
        return w["c"].sum()

    def loss(w: Any) -> Any:
        return inner(w)

    for transform in (pb.grad, pb.jit, lambda f: pb.jit(pb.grad(f)), lambda f: pb.vmap(pb.grad(f))):
        with pytest.raises(KeyError) as caught:
            transform(loss)({"a": pb.ones(3)})
        named = [frame.name for frame in caught.traceback]
        assert named[0] == "test_an_error_of_the_users_keeps_its_own_frames"
        assert named[-2:] == ["loss", "inner"]
        assert len(named) <= 6, named
