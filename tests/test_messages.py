"""What typical mistakes are told: which class of error, which words, and no more lines than help.

To add one, add a line to `MISTAKES`: the call, the class, and words of the message.
"""

from __future__ import annotations

import operator
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pullback as pb
import pullback.nn
from mistakes import check, set_item


def in_place(a):
    a += 1


def set_grad(a, value):
    a.grad = value


def twice(a):
    total = (a * a).sum()
    total.backward()
    total.backward()


def n_grad(a):
    a.detach().requires_grad = True


def branch(a):
    return a if a.sum() > 0 else -a


MISTAKES = [
    ("x @ y", pb.ShapeError, "matmul: the inner sizes differ, got shapes (3, 4) and (5, 6)"),
    ("x @ 3", pb.ShapeError, "matmul: operands need at least one dimension, got shapes (3, 4) and"),
    ("x + y", pb.ShapeError, "add: shapes do not broadcast, got (3, 4) and (5, 6)"),
    ("x + None", TypeError, "unsupported operand type(s) for +: 'Tensor' and 'NoneType'"),
    ("pb.add(x, y)", pb.ShapeError, "add: shapes do not broadcast, got (3, 4) and (5, 6)"),
    ("pb.exp()", TypeError, "exp() missing 1 required positional argument: 'x'"),
    ("pb.add(x)", TypeError, "add() missing 1 required positional argument: 'y'"),
    ('pb.exp("a")', pb.DTypeError, "exp: expected an array, a number or a nested list, got str"),
    ("pb.exp(x, 3)", TypeError, "exp() takes 1 positional argument but 2 were given"),
    ("pb.sin(None)", pb.DTypeError, "sin: expected an array, a number or a nested list, got"),
    ("pb.bitwise_and(x, x)", pb.DTypeError, "bitwise_and: expected a bool or integer dtype, got"),
    ("x & x", pb.DTypeError, "bitwise_and: expected a bool or integer dtype, got float32"),
    ("~x", pb.DTypeError, "bitwise_invert: expected a bool or integer dtype, got float32"),
    ("x % c", pb.DTypeError, "remainder: expected an integer or floating dtype, got complex64"),
    ("x < c", pb.DTypeError, "less: expected a bool or integer or floating dtype, got complex64"),
    ("n << 1.5", pb.DTypeError, "bitwise_left_shift: expected an integer dtype, got float32"),
    ("pb.where(b, x)", TypeError, "where() missing 1 required positional argument: 'y'"),
    ('pb.clip(x, "a", 2)', pb.DTypeError, "clip: expected an array, a number or a nested list,"),
    ('pb.astype(x, "float33")', pb.DTypeError, "astype: unknown dtype, got 'float33'"),
    ("pb.astype(x, dict)", pb.DTypeError, "astype: unknown dtype, got <class 'dict'>"),
    ("x.sum(5)", pb.ShapeError, "sum: axis 5 is out of range for an array with 2 dimensions"),
    ('x.sum("a")', pb.DTypeError, "sum: an axis must be an integer, got 'a'"),
    ("x.sum((0, 0))", pb.ShapeError, "sum: an axis is named twice, got (0, 0)"),
    ("x.sum(0, True)", TypeError, "sum() takes from 1 to 2 positional arguments but 3 were given"),
    ("pb.sum()", TypeError, "sum() missing 1 required positional argument: 'x'"),
    ("pb.sum(x, axis=1.5)", pb.DTypeError, "sum: an axis must be an integer, got 1.5"),
    ("pb.mean(x, axis=2)", pb.ShapeError, "mean: axis 2 is out of range for an array with 2"),
    ("pb.max(pb.zeros((0, 3)))", pb.ShapeError, "max: an empty reduction has no value, got shape"),
    ("pb.argmax(pb.zeros(0))", pb.ShapeError, "argmax: an empty reduction has no value, got shape"),
    ("pb.max(c)", pb.DTypeError, "max: complex numbers have no order, got complex64"),
    ("pb.std(x, axis=[3])", pb.ShapeError, "std: axis 3 is out of range for an array with 2"),
    ("pb.cumulative_sum(x)", pb.ShapeError, "cumulative_sum: an array with 2 dimensions needs an"),
    ("pb.sort(c)", pb.DTypeError, "sort: complex numbers have no order, got complex64"),
    ("pb.sort(x, axis=2)", pb.ShapeError, "sort: axis 2 is out of range for an array with 2"),
    ("pb.topk(v, 9)", pb.ShapeError, "topk: k must be between 0 and 3, the size of the axis, got"),
    ("pb.median(pb.zeros(0))", pb.ShapeError, "median: an empty array has none, got shape (0,)"),
    ("pb.quantile(v, 2.0)", pb.ShapeError, "quantile: fractions must lie between 0 and 1, got 2.0"),
    ("x.reshape((5, 5))", pb.ShapeError, "reshape: an array of shape (3, 4) has 12 elements,"),
    ("x.reshape(5, -1, -1)", pb.ShapeError, "reshape: only one size may be -1, got (5, -1, -1)"),
    ("x.reshape((-1, 5))", pb.ShapeError, "reshape: an array of shape (3, 4) has 12 elements,"),
    ("pb.permute_dims(x, (0, 0))", pb.ShapeError, "permute_dims: axes must name every axis once,"),
    ("pb.permute_dims(x, (0,))", pb.ShapeError, "permute_dims: axes must name every axis once,"),
    ("pb.squeeze(x, 0)", pb.ShapeError, "squeeze: only axes of size 1 can go, got axis 0 of shape"),
    ("pb.expand_dims(x, axis=4)", pb.ShapeError, "expand_dims: axis 4 is out of range for an"),
    ("pb.concat([x, y])", pb.ShapeError, "concat: sizes must agree on every axis but 0, got (3,"),
    ("pb.concat([])", pb.ShapeError, "concat: needs at least one array, got an empty sequence"),
    ("pb.concat(x, y)", pb.DTypeError, "concat: an axis must be an integer, got Tensor"),
    ("pb.stack([x, y])", pb.ShapeError, "stack: arrays need the same shape, got (3, 4) and (5, 6)"),
    ("pb.stack([])", pb.ShapeError, "stack: needs at least one array, got an empty sequence"),
    ("pb.split(x, 5)", pb.ShapeError, "split: an axis of size 3 has no 5 equal parts"),
    ("pb.tile(x, -1)", pb.ShapeError, "tile: a shape has no negative sizes, got (-1,)"),
    ("pb.repeat(x, -1)", pb.ShapeError, "repeat: repeats must not be negative, got -1"),
    ("pb.flip(x, axis=3)", pb.ShapeError, "flip: axis 3 is out of range for an array with 2"),
    ("pb.roll(x, 1.5)", pb.DTypeError, "roll: a shift must be an integer, got float"),
    ("pb.broadcast_to(x, (2, 4))", pb.ShapeError, "broadcast_to: an array of shape (3, 4) does"),
    ("pb.broadcast_arrays(x, y)", pb.ShapeError, "broadcast_arrays: shapes do not broadcast, got"),
    ('pb.einsum("ij,jk", x, y)', pb.ShapeError, "einsum: label 'j' has sizes 4 and 5, got 'ij,jk'"),
    ('pb.einsum("ij", x, y)', pb.ShapeError, "einsum: 'ij' names 1 operand, got 2"),
    ('pb.einsum("ij->k", x)', pb.ShapeError, "einsum: the output label 'k' is not in an operand,"),
    ("pb.tensordot(x, y)", pb.ShapeError, "tensordot: the sizes that meet differ, got shapes (3,"),
    ("pb.matmul(v, pb.ones(4))", pb.ShapeError, "matmul: the inner sizes differ, got shapes (3,)"),
    ("pb.matrix_transpose(v)", pb.ShapeError, "matrix_transpose: a matrix has at least two"),
    ("v.T", pb.ShapeError, "T: expected 2 dimensions, got 1"),
    ("pb.diag(pb.ones((2, 2, 2)))", pb.ShapeError, "diag: takes a 1-D or 2-D array, got shape (2,"),
    ("x[7]", IndexError, "getitem: index 7 is out of range for axis 0 of size 3"),
    ("x[0, 9]", IndexError, "getitem: index 9 is out of range for axis 1 of size 4"),
    ("x[0, 0, 0]", IndexError, "getitem: too many indices, got 3 for an array with 2 dimensions"),
    ("x[[0, 9]]", IndexError, "getitem: index 9 is out of range for an axis of size 3, at"),
    ("x[:, [0, 9]]", IndexError, "getitem: index 9 is out of range for an axis of size 4, at"),
    ("x[0.5]", IndexError, "getitem: an index must be an integer, a slice, `...`, None, or an"),
    ('x["a"]', IndexError, "getitem: an index must be an integer, a slice, `...`, None, or an"),
    ("x[None, ..., ..., 0]", IndexError, "getitem: an index can only have a single ellipsis,"),
    ("x[pb.tensor([True, False])]", IndexError, "getitem: a boolean index must have the shape of"),
    ("x[v]", IndexError, "getitem: an index must be an integer, a slice, `...`, None, or an array"),
    ("x[::0]", IndexError, "getitem: slice step cannot be zero, got slice(None, None, 0)"),
    ("x[[0, 1], [0, 1, 2]]", IndexError, "getitem: shapes do not broadcast, got (2,) and (3,)"),
    ("set_item(x, 9, 1.0)", IndexError, "setitem: index 9 is out of range for axis 0 of size 3"),
    ("set_item(x, 0, y)", pb.ShapeError, "setitem: a value of shape (5, 6) does not broadcast to"),
    ("set_item(x, [0, 9], 1.0)", IndexError, "setitem: index 9 is out of range for an axis of"),
    ("set_item(x, 0, 1j)", pb.DTypeError, "setitem: a complex number can't be written to float32"),
    ('set_item(x, 0, "a")', pb.DTypeError, "setitem: expected an array, a number or a nested"),
    ("pb.take(x, n + 9, axis=0)", IndexError, "take: index 9 is out of range for an axis of size"),
    ("pb.take(x, v, axis=0)", pb.DTypeError, "take: indices must be integers, got float32"),
    ("pb.take(x, n, axis=5)", pb.ShapeError, "take: axis 5 is out of range for an array with 2"),
    ("pb.segment_sum(v, n, 2)", IndexError, "segment_sum: index 2 is out of range for an axis of"),
    ("pb.segment_sum(x, n + 1, 3)", IndexError, "segment_sum: index 3 is out of range for an axis"),
    ("pb.scatter_add(x, n, y)", pb.ShapeError, "scatter_add: shapes do not broadcast, got (5, 6)"),
    ("pb.zeros((2, -1))", pb.ShapeError, "zeros: a shape has no negative sizes, got (2, -1)"),
    ('pb.zeros("a")', pb.DTypeError, "zeros: a shape is made of integers, got 'a'"),
    ("pb.zeros(2.5)", pb.DTypeError, "zeros: a shape is made of integers, got 2.5"),
    ('pb.ones(3, dtype="float33")', pb.DTypeError, "ones: unknown dtype, got 'float33'"),
    ('pb.full((2,), "a")', pb.DTypeError, "full: expected an array, a number or a nested list,"),
    ("pb.arange(0, 10, 0)", pb.ShapeError, "arange: the step must not be 0"),
    ("pb.linspace(0, 1, -1)", pb.ShapeError, "linspace: a shape has no negative sizes, got (-1,)"),
    ("pb.eye(-1)", pb.ShapeError, "eye: a shape has no negative sizes, got (-1, -1)"),
    ('pb.tensor("abc")', pb.DTypeError, "tensor: expected an array, a number or a nested list,"),
    ("pb.tensor([[1], [1, 2]])", pb.ShapeError, "tensor: the nested lists are ragged"),
    ('pb.tensor([1, "a"])', pb.DTypeError, "tensor: elements must be numbers or booleans, got"),
    ("pb.tensor({1: 2})", pb.DTypeError, "tensor: expected an array, a number or a nested list,"),
    ("pb.tensor(object())", pb.DTypeError, "tensor: expected an array, a number or a nested list,"),
    ("pb.tensor([10**30])", pb.DTypeError, "tensor: an integer in the list does not fit int64"),
    ('pb.tensor(1.0, device="gpu")', pb.DeviceError, "device: unknown device, got 'gpu'"),
    ("pb.tensor([1], requires_grad=True)", pb.GradientError, "requires_grad: only floating and"),
    ("len(pb.tensor(1))", pb.DTypeError, "len: a 0-d tensor has no length"),
    ("float(x)", pb.ShapeError, "float: expected a tensor with one element, got shape (3, 4)"),
    ("int(x)", pb.ShapeError, "int: expected a tensor with one element, got shape (3, 4)"),
    ("bool(x)", pb.ShapeError, "bool: expected a tensor with one element, got shape (3, 4)"),
    ("x.item()", pb.ShapeError, "item: expected one element, got shape (3, 4)"),
    ("complex(x)", pb.ShapeError, "complex: expected a tensor with one element, got shape (3, 4)"),
    ("float(t[0])", pb.GradientError, "float: the tensor requires a gradient, and a Python number"),
    ("operator.index(v[0])", pb.DTypeError, "index: only an integer tensor is an index, got"),
    ("range(v[0])", pb.DTypeError, "index: only an integer tensor is an index, got float32"),
    ("t.numpy()", pb.GradientError, "numpy: the tensor requires a gradient, and NumPy would lose"),
    ("x.backward()", pb.GradientError, "backward: the output does not depend on any tensor that"),
    ("t.backward()", pb.GradientError, "backward: an output with more than one element needs a"),
    ("(t * t).backward()", pb.GradientError, "backward: an output with more than one element"),
    ("(t * t).backward(pb.ones(2))", pb.ShapeError, "backward: the cotangent must have the shape"),
    ("twice(t)", pb.GradientError, "sum: the saved values of this operation were released by an"),
    ("set_item(t, 0, 1.0)", pb.GradientError, "setitem: a leaf that requires a gradient can't be"),
    ("in_place(t)", pb.GradientError, "__iadd__: a leaf that requires a gradient can't be updated"),
    ("n_grad(n)", pb.GradientError, "requires_grad: only floating and complex tensors have"),
    ("set_grad(t, pb.ones(7))", pb.ShapeError, "grad: expected shape (3,), got (7,)"),
    ("pb.grad(3)", pb.DTypeError, "grad: expected a function, got int"),
    ('pb.grad(pb.sum, argnums="b")(v)', pb.DTypeError, "grad: argnums are positions of arguments,"),
    ("pb.grad(pb.sum, argnums=3)(v)", pb.GradientError, "grad: argnums names argument 3, got 1"),
    ("pb.grad(pb.sum)(n)", pb.DTypeError, "grad: can't differentiate by an array of dtype int64,"),
    ('pb.grad(pb.sum)("a")', pb.DTypeError, "grad: argument 0: expected an array, a number or a"),
    ("pb.grad(pb.exp)(v)", pb.GradientError, "grad: the function must return a real scalar, got"),
    ("pb.grad(lambda a: 1.0)(v)", pb.GradientError, "grad: the function must return a scalar"),
    ("pb.grad(lambda a: pb.sum(a > 0))(v)", pb.GradientError, "grad: the function must return a"),
    (
        'pb.grad(lambda p: p["w"].sum())({"w": v, "n": n})',
        pb.DTypeError,
        "grad: can't differentiate by",
    ),
    ("pb.jvp(pb.sin, (v,), (x,))", pb.ShapeError, "jvp: directions[0] must have the shape of its"),
    ("pb.jvp(pb.sin, (v,), (v, v))", pb.ShapeError, "jvp: the directions must look like the"),
    ("pb.jvp(pb.sin, (v,), (n,))", pb.DTypeError, "jvp: directions[0] must have the dtype of its"),
    (
        "pb.vjp(pb.sin, v)[1](x)",
        pb.ShapeError,
        "vjp: the cotangent must have the shape of the result,",
    ),
    ("pb.vjp(pb.sin, v)[1]((v, v))", pb.ShapeError, "vjp: the cotangent must look like the"),
    ("pb.vjp(3, v)", pb.DTypeError, "vjp: expected a function, got int"),
    ("pb.hvp(pb.sin, (v,), (v,))", pb.GradientError, "grad: the function must return a real"),
    ("pb.trace(x)", pb.DTypeError, "trace: expected a function to record, got a tensor"),
    ("pb.trace(3)", pb.DTypeError, "trace: expected a function, got int"),
    ("pb.jit(3)", pb.DTypeError, "jit: expected a function, got int"),
    ("pb.jit(branch)(v)", pb.TraceError, "bool: a traced tensor has no value yet"),
    ("pb.jit(lambda a: a @ y)(x)", pb.ShapeError, "matmul: the inner sizes differ, got shapes (3,"),
    ("pb.jit(lambda a: float(a))(v[0])", pb.TraceError, "float: a traced tensor has no value yet"),
    ("pb.jit(lambda a: np.asarray(a))(v)", pb.TraceError, "numpy: a traced tensor has no value"),
    ("pb.jit(lambda a: a)({1, 2})", pb.DTypeError, "jit: an argument that is neither an array nor"),
    ("pb.jit(lambda a: a[[0, 9]])(v)", IndexError, "gather: index 9 is out of range for an axis"),
    ("pb.jit(pb.sum, static_argnums=5)(v)", pb.DTypeError, "jit: static_argnums names no"),
    ("pb.scan(lambda c, r: c, v, x)", pb.DTypeError, "scan: f must return (carry, y), got Tensor"),
    ("pb.scan(lambda c, r: (x, r), v, x)", pb.ShapeError, "scan: carry must keep its shape, (3,),"),
    ("pb.scan(lambda c, r: (c, r), v, v[0])", pb.ShapeError, "scan: xs has no rows to go through,"),
    ("pb.scan(lambda c, r: (c, r), v, None)", pb.ShapeError, "scan: xs holds no arrays and there"),
    ("pb.scan(lambda c, r: ((c, c), r), v, x)", pb.ShapeError, "scan: the carry must keep its"),
    ("pb.fori_loop(0, 2.5, lambda i, c: c, v)", pb.DTypeError, "fori_loop: the bounds must be"),
    ("pb.fori_loop(0, 3, lambda i, c: x, v)", pb.ShapeError, "fori_loop: carry must keep its"),
    ("pb.while_loop(lambda c: c, lambda c: c, v)", pb.ShapeError, "while_loop: the predicate must"),
    (
        "pb.while_loop(lambda c: c.sum(), lambda c: c, v)",
        pb.DTypeError,
        "while_loop: the predicate must",
    ),
    ("pb.cond(v > 0, pb.sin, pb.cos, v)", pb.ShapeError, "cond: the predicate must be 0-d, got"),
    ("pb.cond(v[0], pb.sin, pb.cos, v)", pb.DTypeError, "cond: the predicate must be a bool, got"),
    (
        "pb.check_grad(lambda a: a.detach() * a, (v,))",
        pb.DTypeError,
        "check_grad: finite differences",
    ),
    ("pb.nn.linear(x, y)", pb.ShapeError, "linear: the weight takes vectors of length 6, got"),
    ("pb.nn.conv2d(x, y)", pb.ShapeError, "conv2d: a weight has 4 dimensions, got shape (5, 6)"),
    (
        "pb.nn.conv2d(pb.ones((1, 3, 5, 5)), pb.ones((4, 2, 3, 3)))",
        pb.ShapeError,
        "conv2d: a weight of shape (4,",
    ),
    ("pb.nn.softmax(x, axis=3)", IndexError, "softmax: axis 3 is out of range for an array with 2"),
    ("pb.nn.softmax(x)", TypeError, "softmax() missing 1 required positional argument: 'dim'"),
    ('pb.nn.relu("a")', pb.DTypeError, "relu: expected an array, a number or a nested list, got"),
    ("pb.nn.cross_entropy(x, n * 3)", IndexError, "cross_entropy: class 6 at target[2] is out of"),
    (
        'pb.nn.cross_entropy(x, n, reduction="average")',
        pb.DTypeError,
        "cross_entropy: reduction is",
    ),
    ("pb.nn.cross_entropy(x, y)", pb.ShapeError, "cross_entropy: probabilities must have the"),
    ("pb.nn.mse_loss(x, y)", pb.ShapeError, "mse_loss: shapes do not broadcast, got (3, 4) and"),
    ("pb.nn.dropout(x, 1.5)", pb.ShapeError, "dropout: p must be a probability in [0, 1], got 1.5"),
    ("pb.nn.embedding(n * 3, x)", IndexError, "embedding: index 3 is out of range for an axis of"),
    ("pb.nn.layer_norm(x, (3,))", pb.ShapeError, "layer_norm: normalized_shape must be the end of"),
    ("pb.nn.max_pool2d(x, 2)", pb.ShapeError, "max_pool2d: takes 4 dimensions (batch, channels"),
    ("pb.nn.interpolate(x, 3)", pb.ShapeError, "interpolate: needs a spatial axis, got shape (3,"),
    ("pb.nn.one_hot(v)", pb.DTypeError, "one_hot: class indices are integers, got float32"),
    ("pb.nn.one_hot(n, 2)", IndexError, "one_hot: index 2 is out of range for an axis of size 2"),
    ("pb.nn.cosine_similarity(x, y)", pb.ShapeError, "cosine_similarity: shapes do not broadcast,"),
    ("pb.random.normal((2,))", pb.DTypeError, "normal: a key is a uint32 array of shape (2,), got"),
    ('pb.random.key("a")', pb.DTypeError, "key: the seed must be an integer, got 'a'"),
    ("pb.random.uniform(3, (2, 2))", pb.DTypeError, "uniform: a key is a uint32 array of shape"),
    ("pb.optim.SGD(lr=-1)", pb.ShapeError, "SGD: lr must be in [0, inf], got -1"),
    ("pb.optim.Adam(lr=0.1, betas=(1.0, 0.9))", pb.ShapeError, "Adam: betas must be in [0, 1),"),
    (
        'pb.optim.Adam(lr=0.1).step({"w": v}, {"v": v}, {})',
        pb.ShapeError,
        "Adam.step: gradients must have",
    ),
    (
        "pb.optim.Adam(lr=0.1).step([v], [v, v], {})",
        pb.ShapeError,
        "Adam.step: gradients must have",
    ),
    ("pb.optim.Adam(lr=0.1).step([v], [x], {})", pb.ShapeError, "Adam.step: a gradient must have"),
    ("pb.optim.Adam(lr=0.1).step([n], [n], {})", pb.DTypeError, "Adam.step: parameters must be"),
    (
        'pb.map_tree(lambda a, b: a, {"a": 1}, {"b": 1})',
        pb.ShapeError,
        "map_tree: the trees must have",
    ),
    ('pb.set_default_float("int32")', pb.DTypeError, "set_default_float: the default must be"),
    ('pb.result_type("a")', pb.DTypeError, "result_type: unknown dtype, got 'a'"),
    ('pb.finfo("int32")', pb.DTypeError, "finfo: expected a floating dtype, got int32"),
    ('pb.iinfo("float32")', pb.DTypeError, "iinfo: expected an integer dtype, got float32"),
    ('pb.linalg.vector_norm(x, ord="fro")', pb.DTypeError, "vector_norm: ord must be a number,"),
    ("pb.from_dlpack([1])", pb.DTypeError, "from_dlpack: expected an array that has __dlpack__"),
    ("pb.vmap(3)", pb.DTypeError, "vmap: expected a function, got int"),
    ("pb.vmap(pb.sin)(3.0)", pb.DTypeError, "vmap: args[0] is to be mapped over"),
    ("pb.vmap(pb.add)(x, y)", pb.ShapeError, "vmap: all arguments need the same number"),
    ("pb.vmap(lambda a: a.sum(2))(x)", pb.ShapeError, "sum: axis 2 is out of range"),
    ("x.sum(5)", IndexError, "sum: axis 5 is out of range"),
    ("pb.linalg.inv(x)", pb.ShapeError, "inv: a square matrix is needed, got shape (3, 4)"),
    ("pb.linalg.inv(pb.zeros((2, 2)))", pb.linalg.LinAlgError, "inv: the matrix is singular"),
    (
        "pb.linalg.cholesky(-pb.eye(3))",
        pb.linalg.LinAlgError,
        "cholesky: the matrix is not positive",
    ),
    (
        "pb.linalg.svd(v)",
        pb.ShapeError,
        "svd: a matrix has at least two dimensions, got shape (3,)",
    ),
    ("pb.linalg.solve(y, y)", pb.ShapeError, "solve: a square matrix is needed"),
    ("pb.trace(x)", pb.DTypeError, "pb.linalg.trace(x)"),
]


def names():
    return {
        "np": np, "pb": pb, "operator": operator, "set_item": set_item, "in_place": in_place,
        "set_grad": set_grad, "twice": twice, "n_grad": n_grad, "branch": branch,
        "x": pb.ones((3, 4)), "y": pb.ones((5, 6)), "v": pb.tensor([1.0, 2.0, 3.0]),
        "n": pb.tensor([0, 1, 2]), "b": pb.tensor([True, False, True]), "c": pb.tensor([1j, 2.0]),
        "t": pb.tensor([1.0, 2.0, 3.0], requires_grad=True),
    }  # fmt: skip


@pytest.mark.parametrize(("source", "kind", "words"), MISTAKES, ids=[m[0] for m in MISTAKES])
def test_a_mistake_is_named_in_few_lines(source, kind, words):
    check(source, kind, words, names())


def test_the_frames_of_the_user_stay():
    def inner(a):
        return a @ pb.ones((5, 6))

    def outer(a):
        return pb.sum(inner(a))

    for wrapped in (pb.grad(outer), pb.jit(outer), pb.jit(pb.grad(outer))):
        with pytest.raises(pb.ShapeError) as caught:
            wrapped(pb.ones((3, 4)))
        named = [frame.name for frame in caught.traceback]
        assert named[0] == "test_the_frames_of_the_user_stay"
        assert named[-2:] == ["outer", "inner"]
        home = str(Path(pb.__file__).parent)
        assert len([f for f in caught.traceback if str(f.path).startswith(home)]) == 1


def test_what_the_user_had_caught_stays():
    def calls():
        yield lambda: pb.ones((3, 4)) @ pb.ones((5, 6))
        yield lambda: pb.ones((3, 4)) + pb.ones((5, 6))
        yield lambda: pb.ones((3, 4))[9]

    for call in calls():
        with pytest.raises(pb.PullbackError) as caught:
            try:
                {}["missing"]
            except KeyError:
                call()
        context = caught.value.__context__
        assert isinstance(context, KeyError) and context.args == ("missing",)
        assert context.__context__ is None


def test_whoever_works_on_the_library_sees_all_frames():
    code = "import pullback as pb; pb.ones((3, 4)) @ pb.ones((5, 6))"
    found = {}
    for value in ("", "full"):
        run = subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONPATH": ":".join(sys.path), "PULLBACK_TRACEBACK": value},
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.stderr.splitlines()[-1].endswith("got shapes (3, 4) and (5, 6).")
        found[value] = len(run.stderr.splitlines())
    assert found[""] < found["full"]


def test_arrays_of_other_libraries_are_refused_by_operators():
    class Other:
        """An array of another library: it exchanges memory, and refuses ours without a word."""

        def __dlpack__(self):
            raise NotImplementedError

        def __radd__(self, other):
            return NotImplemented

        def __rmatmul__(self, other):
            return NotImplemented

    for call in (
        lambda a: a + Other(),
        lambda a: Other() + a,
        lambda a: a == Other(),
        lambda a: a @ Other(),
        lambda a: Other() @ a,
        lambda a: operator.imatmul(a, Other()),
    ):
        with pytest.raises(pb.DTypeError, match=r"got .*Other\. Convert it with from_dlpack"):
            call(pb.ones(3))
    numbers: Any = [1, 2, 3]
    for operation in (operator.add, operator.matmul):
        with pytest.raises(TypeError, match="unsupported operand"):
            operation(pb.ones(3), numbers)
