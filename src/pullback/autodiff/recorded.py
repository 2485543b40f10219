"""A function recorded once, with sweeps in both directions over the tape that it left."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pullback.autodiff.forward import tangents
from pullback.autodiff.reverse import (
    ancestors,
    close,
    cotangents,
    depends_on_others,
    fresh,
    recording,
    zeros,
)
from pullback.core import pytrees
from pullback.core.errors import DTypeError, GradientError, ShapeError
from pullback.ir.array import Array, make
from pullback.ir.convert import as_array
from pullback.ir.op import another

__all__ = ["Recorded", "own_handles", "released", "variables_of"]


def variables_of(name: str, trees: Sequence[Any]) -> tuple[list[Any], pytrees.Structure]:
    """Fresh variables for the leaves of the arguments that are differentiated by."""
    leaves, structure = pytrees.flatten(tuple(trees))
    if not leaves:
        raise GradientError(f"{name}: the arguments to differentiate by hold no arrays.")
    result = []
    for leaf in leaves:
        x = as_array(leaf, name)
        if not x._aval.dtype.is_inexact:
            raise DTypeError(
                f"{name}: can't differentiate by an array of dtype {x._aval.dtype.name}."
                " Cast it to a floating dtype, or choose other argnums."
            )
        result.append(fresh(x))
    return result, structure


def own_handles(variables: Sequence[Any]) -> list[Any]:
    """Handles for the function, which may update its arguments in place."""
    return [another(v) for v in variables]


def released(outputs: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
    """The outputs without their link to our own variables, where nobody else's are involved."""
    own = {v._node for v in variables}
    roots = [o._node for o in outputs if o._node is not None]
    if depends_on_others(ancestors(roots, stop=own), own):
        return [another(o) for o in outputs]
    return [make(o._buf, o._aval) for o in outputs]


class Recorded:
    """`f(*primals)`, run once, to be differentiated by all of its arguments.

    `name` is the transform, for messages. `auxiliary` is what `f` returns besides with `has_aux`.
    """

    def __init__(
        self, name: str, f: Callable[..., Any], primals: Sequence[Any], has_aux: bool = False
    ):
        self.name = name
        self.variables, self.structure = variables_of(name, primals)
        with recording(True):
            result = f(*pytrees.unflatten(self.structure, own_handles(self.variables)))
        self.auxiliary = None
        if has_aux:
            if not isinstance(result, tuple) or len(result) != 2:
                raise DTypeError(
                    f"{name}: with has_aux the function must return (result, anything), got"
                    f" {type(result).__name__}."
                )
            result, aux = result
            leaves, structure = pytrees.flatten(aux)
            arrays = [x for x in leaves if isinstance(x, Array)]
            free = iter(released(arrays, self.variables))
            leaves = [next(free) if isinstance(x, Array) else x for x in leaves]
            self.auxiliary = pytrees.unflatten(structure, leaves)
        leaves, self.out_structure = pytrees.flatten(result)
        self.outputs = [as_array(leaf, name) for leaf in leaves]
        close(self.variables)

    @property
    def value(self) -> Any:
        """The result, without a link to our variables."""
        return pytrees.unflatten(self.out_structure, released(self.outputs, self.variables))

    def seeds(self, directions: Sequence[Any]) -> list[Any]:
        """Directions for the arguments as arrays, checked."""
        leaves, given = pytrees.flatten(tuple(directions))
        if given != self.structure:
            raise ShapeError(
                f"{self.name}: the directions must look like the primals, {self.structure},"
                f" got {given}."
            )
        pairs = zip(leaves, self.variables, strict=True)
        return [self._seed(t, v._aval) for t, v in pairs]

    def _seed(self, given: Any, av: Any) -> Any:
        t = as_array(given, self.name, dtype=None if isinstance(given, Array) else av.dtype)
        if t._aval.shape != av.shape:
            raise ShapeError(
                f"{self.name}: a direction must have the shape of its primal, {av.shape}, got"
                f" {t._aval.shape}."
            )
        if t._aval.dtype is not av.dtype:
            raise DTypeError(
                f"{self.name}: a direction must have the dtype of its primal, {av.dtype.name}, got"
                f" {t._aval.dtype.name}."
            )
        return t

    def weights(self, cotangent: Any) -> list[Any]:
        """Cotangents for the results as arrays, checked."""
        leaves, given = pytrees.flatten(cotangent)
        if given != self.out_structure:
            raise ShapeError(
                f"{self.name}: the cotangent must look like the result, {self.out_structure}, got"
                f" {given}."
            )
        found = [as_array(g, self.name) for g in leaves]
        for g, out in zip(found, self.outputs, strict=True):
            if g._aval.shape != out._aval.shape:
                raise ShapeError(
                    f"{self.name}: the cotangent must have the shape of the result,"
                    f" {out._aval.shape}, got {g._aval.shape}."
                )
        return found

    def pushed(self, directions: Sequence[Any]) -> Any:
        """The derivative of the result along directions, as a tree like it."""
        found = tangents(self.outputs, self.variables, self.seeds(directions))
        pairs = zip(found, self.outputs, strict=True)
        return pytrees.unflatten(self.out_structure, [_own(t, o) for t, o in pairs])

    def pulled(self, cotangent: Any) -> tuple:
        """The cotangents of the arguments for one of the result."""
        weights = self.weights(cotangent)
        found = cotangents(self.outputs, weights, self.variables, retain=True)
        pairs = zip(found, self.variables, strict=True)
        return pytrees.unflatten(self.structure, [_own(g, v) for g, v in pairs])


def _own(value: Any, like: Any) -> Any:
    """A handle of its own; None is zero."""
    return zeros(like._aval) if value is None else another(value)
