"""The files of an exported function: a module, its weights, an example and a page that runs it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from pullback.compile.function.unit import Unit
from pullback.files import safetensors
from pullback.web.exported import Exported
from pullback.web.module_text import module_text

__all__ = ["export_web"]

EXAMPLE_BYTES = 64 << 20  # of arguments and results at most that are kept for the page


def export_web(
    function: Callable[..., Any],
    unit: Unit,
    args: tuple,
    kwargs: dict,
    folder: str | os.PathLike[str],
    name: str,
) -> Path:
    """Write the files of a function that was traced for these arguments; the path of its module."""
    name = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_") or "function"
    name = f"_{name}" if name[0].isdigit() else name
    exported = Exported(function, unit, args, kwargs, name)
    text = module_text(exported)
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    module = target / f"{name}.js"
    module.write_text(text, "utf-8")
    weights = {w.name: w.contents for w in exported.weights if w.contents is not None}
    if weights:
        _write(target / f"{name}.safetensors", weights)
    size = sum(a.nbytes for a in (*exported.arguments, *exported.results))
    if size <= EXAMPLE_BYTES:
        _write(target / f"{name}.example.safetensors", exported.example())
    page = (files("pullback.web") / "page.html").read_text("utf-8")
    (target / f"{name}.html").write_text(page.replace("{{name}}", escape(name)), "utf-8")
    return module


def _write(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write a safetensors file, with complex numbers as pairs: the format has none."""
    real = {
        name: x.reshape(*x.shape, 1).view(np.finfo(x.dtype).dtype) if x.dtype.kind == "c" else x
        for name, x in arrays.items()
    }
    with open(path, "wb") as file:
        safetensors.write(file, real, {})
