"""Arithmetic written out as lines of a language, one operation after the other."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Named", "Steps"]


@dataclass
class Steps:
    """The lines so far, and how the language says what a value is and what is done with values."""

    line: str  # of the name {0} and the operation {1}
    product: str
    sum: str
    difference: str
    negative: str
    lines: list[str] = field(default_factory=list)

    def value(self, name: str) -> Named:
        """What the language knows by a name."""
        return Named(self, name)

    def add(self, operation: str, *operands: Named) -> Named:
        """A line with a new value."""
        name = f"t{len(self.lines)}"
        self.lines.append(self.line.format(name, operation.format(*(x.name for x in operands))))
        return Named(self, name)


@dataclass(frozen=True)
class Named:
    """A value with operators."""

    steps: Steps
    name: str

    def __mul__(self, other: Named) -> Named:
        return self.steps.add(self.steps.product, self, other)

    def __add__(self, other: Named) -> Named:
        return self.steps.add(self.steps.sum, self, other)

    def __sub__(self, other: Named) -> Named:
        return self.steps.add(self.steps.difference, self, other)

    def __neg__(self) -> Named:
        return self.steps.add(self.steps.negative, self)
