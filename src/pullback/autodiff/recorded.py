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
    with_recording,
    zeros,
)
from pullback.autodiff.series import expanded
from pullback.core import pytrees
from pullback.core.errors import DTypeError, GradientError, ShapeError, briefly, expect_function
from pullback.ir.array import Array, make
from pullback.ir.convert import as_array
from pullback.ir.op import another, own_handles

__all__ = ["Primals", "Recorded", "released"]


class Primals:
    """The arguments that a transform differentiates by: their leaves as fresh variables, but those
    that a container calls fixed as the constants that they are.
    """

    def __init__(self, name: str, trees: Sequence[Any]):
        self._given = pytrees.Parameters(tuple(trees))
        if not self._given.leaves:
            raise GradientError(f"{name}: the arguments to differentiate by hold no arrays.")
        given = self._given.leaves
        if not all([isinstance(x, Array) and x._aval.dtype.is_inexact for x in given]):
            pairs = zip(given, self._given.paths(""), strict=True)
            given = [_differentiable(name, x, place) for x, place in pairs]
        self.variables = [fresh(x) for x in given]

    @property
    def structure(self) -> pytrees.Structure:
        """Of the tuple of arguments."""
        return self._given.structure

    def tree(self, values: Sequence[Any], rest: Callable[[Any], Any]) -> Any:
        """A tree like the arguments, of values for the variables, and `rest` of each fixed leaf."""
        return self._given.replaced(values, rest)

    def arguments(self) -> Any:
        """Handles for the function, which may update its arguments in place."""
        return self._given.replaced([another(v) for v in self.variables], own_handles)

    def derivatives(self, found: Sequence[Any]) -> Any:
        """A tree like the arguments of what was found for the variables, and zeros for the rest."""
        pairs = zip(found, self.variables, strict=True)
        filled = [zeros(v._aval) if g is None else another(g) for g, v in pairs]
        return self._given.replaced(filled, lambda x: zeros(as_array(x, "grad")._aval))

    def directions(self, name: str, trees: Sequence[Any]) -> list[Any]:
        """A tangent for each variable, from trees like the arguments."""
        structure, given = self._given.structure, pytrees.flatten(tuple(trees))[1]
        if given != structure:
            raise ShapeError(
                f"{name}: the directions must look like the primals:"
                f" {pytrees.difference(structure, given, 'directions')}."
            )
        places = self._given.paths("directions")
        rows = zip(places, self._given.of(tuple(trees)), self.variables, strict=True)
        return [_direction(name, place, t, v) for place, t, v in rows]


def _argument(place: str) -> str:
    """The words for a leaf of the tuple of arguments that are differentiated by."""
    number, _, rest = place[1:].partition("]")
    return f"argument {number}{rest and ' at ' + rest}"


def _differentiable(name: str, leaf: Any, place: str) -> Any:
    """A leaf as an array that there are derivatives by."""
    x = as_array(leaf, f"{name}: {_argument(place)}")
    if not x._aval.dtype.is_inexact:
        raise DTypeError(
            f"{name}: can't differentiate by an array of dtype {x._aval.dtype.name},"
            f" got it in {_argument(place)}. Cast it to a floating dtype, or choose other"
            " argnums."
        )
    return x


def _direction(name: str, place: str, t: Any, v: Any) -> Any:
    """A tangent that fits the variable `v`."""
    t = as_array(t, name, dtype=None if isinstance(t, Array) else v._aval.dtype)
    if t._aval.shape != v._aval.shape:
        raise ShapeError(
            f"{name}: {place} must have the shape of its primal, {v._aval.shape}, got"
            f" {t._aval.shape}."
        )
    if t._aval.dtype is not v._aval.dtype:
        raise DTypeError(
            f"{name}: {place} must have the dtype of its primal, {v._aval.dtype.name}, got"
            f" {t._aval.dtype.name}."
        )
    return t


def released(outputs: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
    """The outputs without their link to our own variables, where nobody else's are involved."""
    own = {v._node for v in variables}
    roots = [o._node for o in outputs if o._node is not None]
    if depends_on_others(ancestors(roots, stop=own), own):
        return [another(o) for o in outputs]
    return [make(o._buf, o._aval) for o in outputs]


class Recorded:
    """`f(*primals)`, run once, to be differentiated by all of its arguments.

    `name` is the transform, for messages. `auxiliary` is what `f` returns besides with `has_aux`,
    `seeds` are the directions, checked before `f` runs.
    """

    def __init__(
        self,
        name: str,
        f: Callable[..., Any],
        primals: Sequence[Any],
        has_aux: bool = False,
        directions: Sequence[Any] | None = None,
    ):
        expect_function(name, f)
        self.name = name
        self.primals = Primals(name, primals)
        self.variables = self.primals.variables
        self.seeds = [] if directions is None else self.primals.directions(name, directions)
        self._run(f, has_aux)

    def _run(self, f: Callable[..., Any], has_aux: bool) -> None:
        result = with_recording(True, f, *self.primals.arguments())
        self.auxiliary = None
        if has_aux:
            if not isinstance(result, tuple) or len(result) != 2:
                raise DTypeError(
                    f"{self.name}: with has_aux the function must return (result, anything), got"
                    f" {type(result).__name__}."
                )
            result, aux = result
            leaves, structure = pytrees.flatten(aux)
            arrays = [x for x in leaves if isinstance(x, Array)]
            free = iter(released(arrays, self.variables))
            leaves = [next(free) if isinstance(x, Array) else x for x in leaves]
            self.auxiliary = pytrees.unflatten(structure, leaves)
        leaves, self.out_structure = pytrees.flatten(result)
        self.outputs = [as_array(leaf, self.name) for leaf in leaves]
        close(self.variables)

    @property
    def value(self) -> Any:
        """The result, without a link to our variables."""
        return pytrees.unflatten(self.out_structure, released(self.outputs, self.variables))

    def pushed(self, seeds: Sequence[Any]) -> Any:
        """The derivative of the result along checked directions, as a tree like the result."""
        found = tangents(self.outputs, self.variables, seeds)
        pairs = zip(found, self.outputs, strict=True)
        filled = [zeros(o._aval) if t is None else another(t) for t, o in pairs]
        return pytrees.unflatten(self.out_structure, filled)

    def expanded(self, series: Sequence[Sequence[Any]]) -> list[Any]:
        """The Taylor coefficients of the result from order 1 on, each a tree like the result, for
        those of each variable, None being zero.
        """
        found = expanded(self.outputs, self.variables, series)
        return [
            pytrees.unflatten(
                self.out_structure,
                [
                    zeros(o._aval) if t is None else another(t)
                    for t, o in zip(terms, self.outputs, strict=True)
                ],
            )
            for terms in zip(*found, strict=True)
        ]

    def along(self, *directions: Any) -> Any:
        """The derivative of the result along directions, which look like the arguments."""
        return self.pushed(self.primals.directions(self.name, directions))

    @briefly
    def pulled(self, cotangent: Any) -> Any:
        """The cotangents of the arguments, for one that looks like the result."""
        weights = self.weights(cotangent)
        found = cotangents(self.outputs, weights, self.variables, retain=True)
        return self.primals.derivatives(found)

    def weights(self, cotangent: Any) -> list[Any]:
        """Cotangents of the results as arrays, checked."""
        leaves, structure = pytrees.flatten(cotangent)
        if structure != self.out_structure:
            raise ShapeError(
                f"{self.name}: the cotangent must look like the result:"
                f" {pytrees.difference(self.out_structure, structure, 'the cotangent')}."
            )
        found = [as_array(g, self.name) for g in leaves]
        places = pytrees.paths(self.out_structure, "the cotangent")
        for place, g, out in zip(places, found, self.outputs, strict=True):
            if g._aval.shape != out._aval.shape:
                raise ShapeError(
                    f"{self.name}: {place} must have the shape of the result, {out._aval.shape},"
                    f" got {g._aval.shape}."
                )
        return found
