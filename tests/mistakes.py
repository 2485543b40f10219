"""How tests of mistakes run a line of code, and what they ask of its error."""

from __future__ import annotations

import linecache
import traceback
from typing import Any

import pytest

import pullback as pb

LINES = 12  # of a traceback, from the user's own line on
CHARACTERS = 400  # of a message


def set_item(a: Any, key: Any, value: Any) -> None:
    a = a.clone() if a.requires_grad is False else a
    a[key] = value


def raised(source: str, given: dict[str, Any]) -> tuple[Exception, str]:
    """The error of a line of code, and what Python prints about it, from that line on."""
    place = f"<{source}>"
    linecache.cache[place] = (len(source), None, [source + "\n"], place)
    try:
        eval(compile(source, place, "eval"), given)
    except Exception as error:
        assert error.__traceback__ is not None
        printed = traceback.format_exception(type(error), error, error.__traceback__.tb_next)
        return error, "".join(printed)
    pytest.fail(f"{source} raised nothing")


def check(source: str, kind: type[Exception], words: str, given: dict[str, Any]) -> None:
    """The class of the error, words of its message, and that all of it is short."""
    error, printed = raised(source, given)
    assert isinstance(error, kind)
    assert words in str(error)
    assert len(str(error)) < CHARACTERS
    assert printed.count("Traceback (most recent call last)") == 1
    assert len(printed.rstrip().splitlines()) <= LINES, printed
    if isinstance(error, pb.PullbackError):
        assert str(error).rstrip(")").endswith(".")
