"""The workloads of `pullback bench nn` as functions, for the libraries that have such layers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pullback as pb
from benchmarks.libraries import LIBRARIES, Library
from benchmarks.nn_workloads import Layer, layer_of
from benchmarks.programs import Function
from benchmarks.workloads import leaves

__all__ = ["NN_LIBRARIES", "is_there", "program"]

NN_LIBRARIES = ("pullback", "torch")


def is_there(workload: str) -> bool:
    """Whether pb.nn has the function of a workload."""
    return hasattr(pb.nn, layer_of(workload)[0].function)


def program(library: Library, name: str) -> Function:
    """The function of a workload's inputs."""
    layer, second = layer_of(name)
    build = _second_order if second else _first_order
    return build(library, layer, _functions(library))


def _functions(library: Library) -> Any:
    """The layers of a library, under the names of torch.nn.functional."""
    if isinstance(library, LIBRARIES["pullback"]):
        return library.xp.nn
    functional = library.xp.nn.functional

    def lstm(x: Any, weights: list[Any]) -> Any:
        start = x.new_zeros(1, x.shape[1], weights[1].shape[1])
        return library.xp.lstm(x, (start, start), weights, True, 1, 0.0, True, False, False)

    return SimpleNamespace(**{**vars(functional), "lstm": lstm})


def _first_order(library: Library, layer: Layer, nn: Any) -> Function:
    works: list[Function] = []

    def both(cotangent: Any, arrays: Any, fixed: Any) -> Any:
        if not works:  # indices are no arguments to differentiate by: they are known by now
            works.append(library.with_pullback(lambda *xs: layer.call(nn, fixed, *xs)))
            _mark(arrays)
        return works[0](cotangent, *arrays)

    return both


def _mark(arrays: Any) -> None:
    """Ask for gradients, where a library is asked on its arrays."""
    for x in leaves(arrays):
        if hasattr(x, "requires_grad_"):
            x.requires_grad_()


def _second_order(library: Library, layer: Layer, nn: Any) -> Function:
    works: list[Function] = []

    def product(arrays: Any, direction: Any, fixed: Any) -> Any:
        if not works:

            def loss(xs: Any) -> Any:
                out = layer.call(nn, fixed, *xs)
                return (out * out).sum() * 0.5

            works.append(library.hessian_product(loss))
            _mark(arrays)
        return works[0](arrays, direction)

    return product
