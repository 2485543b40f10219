"""Constants of schedules, set from outside before a tool measures: none of them changes a bit.

    TUNED="pullback.runtime.cuda.launch.FEW_UNITS=0" PULLBACK_CACHE_DIR=$(mktemp -d) python tools/..

A cache of its own keeps programs of other schedules away.
"""

from __future__ import annotations

import ast
import os
from importlib import import_module

__all__ = ["tune"]


def tune() -> None:
    """Set what TUNED names: constants of modules and their values, between spaces."""
    for word in os.environ.get("TUNED", "").split():
        place, _, value = word.partition("=")
        module, _, name = place.rpartition(".")
        found = import_module(module)
        if not hasattr(found, name):
            raise SystemExit(f"TUNED: {module} has no {name}.")
        setattr(found, name, ast.literal_eval(value))
        print(f"{name} = {value}", flush=True)
