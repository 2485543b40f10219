"""What is said of a name that an object or a namespace has not: ours that was meant, or what does
the work of one that people know from elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module  # difflib is imported where it is used
from typing import Any

__all__ = [
    "METHOD_HINTS",
    "MODULE_HINTS",
    "OPTIMIZER_HINTS",
    "MissingMethods",
    "hint_for",
    "missing",
    "missing_name",
]

CLOSE = 0.8  # how much two names must agree, from 0 to 1, for one to be a slip of the other

# Methods of other libraries' arrays that ours has not.
METHOD_HINTS = {
    "H": "x.mT.conj()",
    "add_": "x += y",
    "addmm": "c + a @ b",
    "append": "pb.concat([x, y])",
    "argpartition": "pb.topk(x, k)",
    "at": "x[index] = value, which is differentiable",
    "block_until_ready": "nothing: reading a value waits for it",
    "bool": "x.astype(pb.bool)",
    "byte": "x.astype(pb.uint8)",
    "chunk": "x.split(n)",
    "clamp_": "x = x.clip(low, high)",
    "clamp_max": "x.clip(max=high)",
    "clamp_min": "x.clip(min=low)",
    "compress": "x[mask]",
    "contiguous": "nothing: layouts are the library's business",
    "copy_": "x[...] = y",
    "cross": "pb.linalg.cross(x, y)",
    "cuda": "x.to_device('cuda')",
    "data": "x.detach()",
    "det": "pb.linalg.det(x)",
    "dim": "x.ndim",
    "div_": "x /= y",
    "double": "x.astype(pb.float64)",
    "equal": "x == y, or pb.all(x == y)",
    "expand": "x.broadcast_to(shape)",
    "expand_as": "x.broadcast_to(y.shape)",
    "fill": "x[...] = value",
    "fill_": "x[...] = value",
    "flat": "x.ravel()",
    "float": "x.astype(pb.float32)",
    "frac": "x - x.trunc()",
    "gather": "pb.take_along_axis(x, indices, axis=...)",
    "get_device": "x.device",
    "half": "x.astype(pb.float16)",
    "index_add": "pb.index_add(x, indices, updates, axis=...)",
    "index_fill": "x[indices] = value",
    "index_select": "x.take(indices, axis=...)",
    "int": "x.astype(pb.int32)",
    "inverse": "pb.linalg.inv(x)",
    "is_contiguous": "nothing: layouts are the library's business",
    "is_cuda": "x.device",
    "lerp": "x + t * (y - x)",
    "log_softmax": "pb.nn.log_softmax(x, dim=...)",
    "logit": "pb.log(x / (1 - x))",
    "long": "x.astype(pb.int64)",
    "mH": "x.mT.conj()",
    "masked_scatter": "x[mask] = values",
    "mul_": "x *= y",
    "nanmax": "pb.nanmax(x)",
    "narrow": "x[start : start + length]",
    "ndimension": "x.ndim",
    "nelement": "x.size",
    "norm": "pb.linalg.vector_norm(x)",
    "normal_": "pb.random.normal(key, x.shape)",
    "pin_memory": "nothing: pullback moves memory by itself",
    "put": "pb.put(x, indices, values)",
    "relu": "pb.nn.relu(x)",
    "requires_grad_": "x.requires_grad = True",
    "reshape_as": "x.reshape(y.shape)",
    "resize": "x.reshape(shape)",
    "select": "x[index]",
    "share_memory_": "pb.save and pb.load with mmap=True",
    "short": "x.astype(pb.int16)",
    "softmax": "pb.nn.softmax(x, dim=...)",
    "stack": "pb.stack",
    "stride": "nothing: layouts are the library's business",
    "strides": "nothing: layouts are the library's business",
    "sub_": "x -= y",
    "svd": "pb.linalg.svd(x)",
    "t": "x.T",
    "tensor_split": "x.split(indices)",
    "tobytes": "x.numpy().tobytes()",
    "trace": "pb.linalg.trace(x)",
    "type": "x.astype(dtype)",
    "type_as": "x.astype(y.dtype)",
    "unflatten": "x.reshape(shape)",
    "unfold": "pb.nn.unfold",
    "uniform_": "pb.random.uniform(key, x.shape)",
    "unique": "pb.unique_values(x)",
    "values": "x.numpy()",
    "vdot": "pb.vecdot(x, y)",
    "view_as": "x.reshape(y.shape)",
    "where": "pb.where(condition, x, y)",
    "zero_": "x[...] = 0",
}

# Names in our namespaces that other libraries have in theirs.
NAMESPACE_HINTS = {
    "linalg": {
        "LinAlgError": "pb.LinAlgError",
        "norm": "pb.linalg.vector_norm or pb.linalg.matrix_norm",
    },
    "nn": {
        "Buffer": "the class's buffers = ('name',)",
        "Conv": "pb.nn.Conv1d, pb.nn.Conv2d or pb.nn.Conv3d",
        "DataParallel": "pb.set_num_threads(n): a process computes on one device",
        "Dense": "pb.nn.Linear",
        "Module": "pb.Module",
        "ModuleDict": "a dict as an attribute",
        "ModuleList": "a list as an attribute",
        "Parameter": "a tensor as an attribute",
        "ParameterList": "a list as an attribute",
        "SyncBatchNorm": "pb.nn.BatchNorm2d",
        "Transformer": "lists of pb.nn.TransformerEncoderLayer and TransformerDecoderLayer",
        "TransformerDecoder": "a list of pb.nn.TransformerDecoderLayer",
        "TransformerEncoder": "a list of pb.nn.TransformerEncoderLayer",
        "functional": "pb.nn: its functions have these names",
        "utils": "pb.optim.clip_grad_norm and pb.optim.clip_grad_value",
    },
    "nn.init": {
        "calculate_gain": "pb.nn.init.gain(nonlinearity)",
        "constant": "pb.full(shape, value)",
        "constant_": "pb.full(shape, value)",
        "dirac": "pb.nn.init.orthogonal, or an array of your own",
        "dirac_": "pb.nn.init.orthogonal, or an array of your own",
        "eye": "pb.eye(n)",
        "eye_": "pb.eye(n)",
        "glorot_normal": "pb.nn.init.xavier_normal(key, shape)",
        "glorot_uniform": "pb.nn.init.xavier_uniform(key, shape)",
        "he_normal": "pb.nn.init.kaiming_normal(key, shape)",
        "he_uniform": "pb.nn.init.kaiming_uniform(key, shape)",
        "kaiming_normal_": "net.weight = pb.nn.init.kaiming_normal(key, net.weight.shape)",
        "kaiming_uniform_": "net.weight = pb.nn.init.kaiming_uniform(key, net.weight.shape)",
        "lecun_normal": "pb.nn.init.kaiming_normal(key, shape, gain=1.0)",
        "normal_": "pb.nn.init.normal(key, shape)",
        "ones": "pb.ones(shape)",
        "ones_": "pb.ones(shape)",
        "orthogonal_": "pb.nn.init.orthogonal(key, shape)",
        "trunc_normal": "pb.nn.init.truncated_normal(key, shape)",
        "trunc_normal_": "pb.nn.init.truncated_normal(key, shape)",
        "uniform_": "pb.nn.init.uniform(key, shape)",
        "xavier_normal_": "pb.nn.init.xavier_normal(key, shape)",
        "xavier_uniform_": "pb.nn.init.xavier_uniform(key, shape)",
        "zeros": "pb.zeros(shape)",
        "zeros_": "pb.zeros(shape)",
    },
    "optim": {
        "adam": "pb.optim.Adam",
        "apply_updates": "opt.step(params, grads, state), which gives the new parameters",
        "chain": "pb.optim.clip_grad_norm before opt.step",
        "lr_scheduler": "a schedule as lr: pb.optim.Adam(lr=pb.optim.cosine(0.1, 100))",
        "rmsprop": "pb.optim.RMSprop",
        "sgd": "pb.optim.SGD",
    },
    "random": {
        "PRNGKey": "pb.random.key(seed)",
        "default_rng": "pb.random.key(seed): every random function takes a key",
        "rand": "pb.random.uniform(key, shape)",
        "randn": "pb.random.normal(key, shape)",
        "random": "pb.random.uniform(key, shape)",
        "seed": "pb.random.key(seed): every random function takes a key",
        "shuffle": "pb.random.permutation(key, x)",
        "standard_normal": "pb.random.normal(key, shape)",
        "categorical": "pb.random.choice(key, n, shape, p=p)",
    },
    "train": {
        "DataLoader": "pb.train.batches(data, size, key=key)",
        "fit": "an ordinary loop with pb.train.batches, pb.train.Log and pb.train.Checkpoints",
    },
}

# What models of other libraries have, and ours have not.
MODULE_HINTS = {
    "apply": "pb.map_tree(f, net)",
    "children": "vars(net)",
    "compile": "pb.jit(net)",
    "cpu": "pb.map_tree(lambda x: x.to_device('cpu'), net)",
    "cuda": "pb.map_tree(lambda x: x.to_device('cuda'), net)",
    "double": "pb.train.cast(net, 'float64')",
    "eval": "net(x): training is an argument, False if it is left out",
    "fit": "an ordinary loop: see the documentation of training",
    "forward": "net(x), and __call__ to define it",
    "half": "pb.train.cast(net, 'float16')",
    "load_state_dict": "pb.load(path, like=net)",
    "named_children": "vars(net)",
    "named_modules": "vars(net)",
    "modules": "vars(net)",
    "predict": "net(x)",
    "register_buffer": "buffers = ('name',) in the class",
    "register_parameter": "self.name = tensor",
    "requires_grad_": "net.freeze()",
    "to": "pb.train.cast(net, dtype), or pb.map_tree(lambda x: x.to_device(device), net)",
    "train": "net(x, training=True, key=key)",
    "zero_grad": "pb.grad: gradients are results, and nothing accumulates",
}
OPTIMIZER_HINTS = {
    "apply_gradients": "params, state = opt.step(params, grads, state)",
    "minimize": "pb.optim.LBFGS, or a loop of opt.step",
    "param_groups": "params and lr: an optimiser holds neither gradients nor parameters",
    "state_dict": "the state itself, which is a tree: pb.save(path, state)",
    "update": "opt.step(params, grads, state)",
    "zero_grad": "pb.grad: gradients are results, and nothing accumulates",
}


def hint_for(name: str, hints: Mapping[str, str], known: Mapping[str, str]) -> str:
    """What to say of a missing name: what does its work, or which of the `known` ones was meant (by
    name, with where it is).
    """
    if name in hints:
        return f" Use {hints[name]}."
    if name.startswith("_"):
        return ""
    close = import_module("difflib").get_close_matches(name, known, 1, CLOSE)
    if not close:
        return ""
    where = known[close[0]]
    return f" Did you mean {where}.{close[0]}?" if where else f" Did you mean {close[0]}?"


def missing(said: str, name: str, hints: Mapping[str, str], known: Iterable[str]) -> AttributeError:
    """The error for an attribute that an object has not; `said` is what the object is called."""
    shown = {n: "" for n in known if not n.startswith("_")}
    hint = hint_for(name, hints, shown)
    return AttributeError(f"{said!r} object has no attribute {name!r}.{hint}")


def missing_name(namespace: str, name: str, known: Iterable[str]) -> AttributeError:
    """The error for a name that one of our namespaces has not."""
    hints = NAMESPACE_HINTS.get(namespace, {})
    hint = hint_for(name, hints, dict.fromkeys(known, f"pb.{namespace}"))
    return AttributeError(f"module 'pullback.{namespace}' has no attribute {name!r}.{hint}")


class MissingName:
    """A method that tensors have under another name, or not at all."""

    def __init__(self, name: str):
        self.name = name

    def __get__(self, tensor: Any, owner: Any = None) -> Any:
        raise missing("Tensor", self.name, METHOD_HINTS, ())


# A `__getattr__` would cost every access to an attribute, and so every operation, a good third.
MissingMethods: Any = type(
    "MissingMethods", (), {"__slots__": (), **{n: MissingName(n) for n in METHOD_HINTS}}
)
