"""The notation of `einsum`: which label belongs to which axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pullback.core.avals import Aval
from pullback.core.errors import ShapeError

__all__ = ["Labels", "label_sizes", "parsed", "spelled"]

Labels = tuple[Any, ...]  # letters, and negative integers for the axes of an ellipsis


def spelled(arguments: tuple[Any, ...]) -> tuple[str, tuple[Any, ...]]:
    """The call `einsum(x, [0, 1], y, [1, 2], [0, 2])` with its sublists spelled as letters."""
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

    def word(labels: Any) -> str:
        for n in labels:
            known = isinstance(n, (int, np.integer)) and 0 <= n < len(letters)
            if n is not Ellipsis and not known:
                raise ShapeError(f"einsum: a label must be an integer from 0 to 51, got {n!r}.")
        return "".join("..." if n is Ellipsis else letters[n] for n in labels)

    pairs = len(arguments) // 2
    text = ",".join(word(arguments[2 * i + 1]) for i in range(pairs))
    if len(arguments) % 2:
        text += "->" + word(arguments[-1])
    return text, tuple(arguments[2 * i] for i in range(pairs))


def _term(text: str, spread: int, subscripts: str) -> Labels:
    """The labels of one operand or of the output; an ellipsis stands for `spread` axes."""
    head, dots, tail = text.partition("...")
    for c in head + tail:
        if not c.isalpha() or not c.isascii():
            raise ShapeError(f"einsum: {c!r} is not a letter, got {subscripts!r}.")
    return (*head, *(range(-spread, 0) if dots else ()), *tail)


def parsed(subscripts: str, avals: Sequence[Aval]) -> tuple[list[Labels], Labels]:
    """The labels of the operands and of the output."""
    text = subscripts.replace(" ", "")
    left, arrow, right = text.partition("->")
    words = left.split(",")
    if len(words) != len(avals):
        raise ShapeError(
            f"einsum: {subscripts!r} names {len(words)} operand{'s' * (len(words) != 1)},"
            f" got {len(avals)}."
        )
    terms: list[Labels] = []
    widest = 0
    for word, av in zip(words, avals, strict=True):
        letters = len(word.replace("...", "", 1))
        spread = av.ndim - letters
        if spread < 0 or (spread and "..." not in word):
            raise ShapeError(
                f"einsum: {word!r} does not fit an array of shape {av.shape}, in {subscripts!r}."
            )
        widest = max(widest, spread)
        terms.append(_term(word, spread, subscripts))
    if arrow:
        out = _term(right, widest, subscripts)
    else:
        every = [c for t in terms for c in t if isinstance(c, str)]
        once = sorted(c for c in set(every) if every.count(c) == 1)
        out = (*range(-widest, 0), *once)
    _check_output(out, terms, subscripts)
    return terms, out


def _check_output(out: Labels, terms: list[Labels], subscripts: str) -> None:
    known = {c for t in terms for c in t}
    for c in out:
        if c not in known:
            raise ShapeError(
                f"einsum: the output label {c!r} is not in an operand, got {subscripts!r}."
            )
    if len(set(out)) != len(out):
        raise ShapeError(f"einsum: an output label is repeated, got {subscripts!r}.")


def label_sizes(terms: list[Labels], avals: Sequence[Aval], subscripts: str) -> dict[Any, int]:
    sizes: dict[Any, int] = {}
    for labels, av in zip(terms, avals, strict=True):
        for c, n in zip(labels, av.shape, strict=True):
            known = sizes.setdefault(c, n)
            if 1 not in (known, n) and known != n:
                raise ShapeError(
                    f"einsum: label {c!r} has sizes {known} and {n}, got {subscripts!r}"
                    f" with shapes {', '.join(str(a.shape) for a in avals)}."
                )
            if known == 1:
                sizes[c] = n
    return sizes
