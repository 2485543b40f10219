"""Bugs planted for the tests of the fuzzer: in a worker, by name."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import pullback as pb
from fuzz import operations
from pullback.compile.graph.passes.rewriter import Rewriter
from pullback.ir.op import REGISTRY

__all__ = ["crash", "hang", "wrong_pass", "wrong_value"]


def wrong_value() -> None:
    """The sine is off by a thousandth."""
    right = REGISTRY["sin"].function
    setattr(pb, "sin", lambda x, /: right(x) * 1.001)  # noqa: B010  (the stub says it is fixed)
    operations.keys = lambda: ("sin", "add", "flip")  # type: ignore[assignment]


def wrong_pass() -> None:
    """Compiled differences have their operands exchanged."""
    right = Rewriter.append

    def append(self: Rewriter, op: Any, inputs: Any, static: Any, avals: Any) -> Any:
        if op is REGISTRY["subtract"] and inputs[0].aval is inputs[1].aval:
            inputs = inputs[::-1]
        return right(self, op, inputs, static, avals)

    Rewriter.append = append  # type: ignore[method-assign]
    operations.keys = lambda: ("subtract", "multiply", "flip")  # type: ignore[assignment]


def _before_checks(act: Callable[[], None]) -> None:
    """What is done as a check begins."""
    checked = operations.OperationCase.run_check

    def run_check(self: operations.OperationCase, name: str) -> None:
        act()
        checked(self, name)

    operations.OperationCase.run_check = run_check  # type: ignore[method-assign]


def crash() -> None:
    _before_checks(os.abort)


def hang() -> None:
    _before_checks(lambda: time.sleep(3600))
