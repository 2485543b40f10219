"""Arithmetic written out as lines of a language, one operation after the other."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Statements", "Term"]


@dataclass
class Statements:
    """The lines so far, and how the language says what a value is and what is done with values."""

    line: str  # of the name {0} and the operation {1}
    product: str
    sum: str
    difference: str
    negative: str
    lines: list[str] = field(default_factory=list)

    def value(self, name: str) -> Term:
        """What the language knows by a name."""
        return Term(self, name)

    def add(self, operation: str, *operands: Term) -> Term:
        """A line with a new value."""
        name = f"t{len(self.lines)}"
        self.lines.append(self.line.format(name, operation.format(*(x.name for x in operands))))
        return Term(self, name)


@dataclass(frozen=True)
class Term:
    """A value with operators."""

    steps: Statements
    name: str

    def __mul__(self, other: Term) -> Term:
        return self.steps.add(self.steps.product, self, other)

    def __add__(self, other: Term) -> Term:
        return self.steps.add(self.steps.sum, self, other)

    def __sub__(self, other: Term) -> Term:
        return self.steps.add(self.steps.difference, self, other)

    def __neg__(self) -> Term:
        return self.steps.add(self.steps.negative, self)
