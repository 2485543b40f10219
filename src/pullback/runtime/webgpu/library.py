"""WGSL functions that kernels call: a text gets those that it names, and what these name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

__all__ = ["library_of", "needed_functions"]

_FILES = ("integers", "float32", "float64")
_NAME = re.compile(r"\b[a-z]\w*\b")
_HEAD = re.compile(r"^fn (\w+)", re.MULTILINE)


@cache
def _functions() -> dict[str, str]:
    """The text of each function; blank lines part them."""
    found = {}
    for name in _FILES:
        text = (files("pullback.runtime.webgpu") / "wgsl" / f"{name}.wgsl").read_text("utf-8")
        for part in text.strip().split("\n\n"):
            head = _HEAD.search(part)
            if head:
                code = [line for line in part.splitlines() if not line.startswith("//")]
                found[head[1]] = "\n".join(code)
    return found


@cache
def _needed(name: str) -> tuple[str, ...]:
    """A function and all that it calls, what is called first."""
    found: dict[str, None] = {}
    functions = _functions()
    for other in dict.fromkeys(_NAME.findall(functions[name])):
        if other in functions and other != name:
            found |= dict.fromkeys(_needed(other))
    return (*found, name)


def library_of(text: str, own: Mapping[str, str] | None = None) -> str:
    """The functions that a text calls; `own` take the place of those of their names, and are
    written if one of them is called.
    """
    found = needed_functions(text)
    if own and (own.keys() & found.keys() or any(f"{name}(" in text for name in own)):
        found |= needed_functions("\n".join(own.values()))
        found = {name: text for name, text in found.items() if name not in own}
        return "\n".join([*own.values(), *found.values()])
    return "\n".join(found.values())


def needed_functions(text: str) -> dict[str, str]:
    """The functions that a text calls, by name."""
    functions = _functions()
    found: dict[str, None] = {}
    for name in dict.fromkeys(_NAME.findall(text)):
        if name in functions and f"fn {name}(" not in text:
            found |= dict.fromkeys(_needed(name))
    return {name: functions[name] for name in found}
