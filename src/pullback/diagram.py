"""A graph as a picture: boxes in layers, edges downwards, as one SVG text."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

__all__ = ["GraphBox", "svg"]

CHARACTER, HEIGHT, GAP, LAYER, MARGIN = 7.2, 40.0, 18.0, 78.0, 16.0
SWEEPS = 6  # over the layers, each one putting boxes below the middle of their parents

STYLE = """
.graph { font: 12px ui-monospace, monospace; }
.graph rect { fill: #f6f8fa; stroke: #8c959f; rx: 6; }
.graph .input rect { fill: #ddf4ff; stroke: #0969da; }
.graph .parameter rect { fill: #fff8c5; stroke: #bf8700; }
.graph .constant rect { stroke-dasharray: 4 3; }
.graph text { fill: #1f2328; text-anchor: middle; }
.graph .type { fill: #59636e; font-size: 10px; }
.graph path { fill: none; stroke: #8c959f; }
@media (prefers-color-scheme: dark) {
  .graph rect { fill: #212830; stroke: #656c76; }
  .graph .input rect { fill: #12283d; stroke: #4493f8; }
  .graph .parameter rect { fill: #2e2a1f; stroke: #d29922; }
  .graph text { fill: #f0f6fc; }
  .graph .type { fill: #9198a1; }
}
"""


class GraphBox(NamedTuple):
    """One node: what is written on it, the class that styles it, the positions of its parents."""

    title: str
    subtitle: str
    kind: str
    parents: tuple[int, ...]

    @property
    def width(self) -> float:
        return CHARACTER * max(len(self.title), len(self.subtitle) * 0.85) + 18.0


def svg(boxes: Sequence[GraphBox]) -> str:
    """The picture of boxes whose parents come before them."""
    layers = _layers(boxes)
    _untangle(boxes, layers)
    place = _places(boxes, layers)
    right = max((x + b.width / 2 for b, (x, _) in zip(boxes, place, strict=True)), default=0.0)
    bottom = max((y + HEIGHT / 2 for _, y in place), default=0.0)
    size = f"{right + MARGIN:.0f} {bottom + MARGIN:.0f}"
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" class="graph" viewBox="0 0 {size}">']
    parts.append(f"<style>{STYLE}</style>")
    for box, (x, y) in zip(boxes, place, strict=True):
        for parent in dict.fromkeys(box.parents):
            px, py = place[parent]
            top, end, bend = py + HEIGHT / 2, y - HEIGHT / 2, LAYER / 2
            curve = f"C{px:.1f} {top + bend:.1f} {x:.1f} {end - bend:.1f} {x:.1f} {end:.1f}"
            parts.append(f'<path d="M{px:.1f} {top:.1f} {curve}"/>')
    for box, (x, y) in zip(boxes, place, strict=True):
        parts.append(_drawn(box, x, y))
    return "\n".join([*parts, "</svg>"])


def _layers(boxes: Sequence[GraphBox]) -> list[list[int]]:
    """The boxes by the longest way to them; those without parents just above their first child."""
    depth: list[int] = []
    for box in boxes:
        depth.append(1 + max((depth[p] for p in box.parents), default=-1))
    first = [len(boxes)] * len(boxes)
    for i, box in enumerate(boxes):
        for p in box.parents:
            first[p] = min(first[p], depth[i])
    layers: list[list[int]] = [[] for _ in range(max(depth, default=-1) + 1)]
    for i, box in enumerate(boxes):
        alone = box.parents or first[i] == len(boxes)
        layers[depth[i] if alone else first[i] - 1].append(i)
    return layers


def _untangle(boxes: Sequence[GraphBox], layers: list[list[int]]) -> None:
    """Order each layer by the mean place of its neighbours, down and up again a few times."""
    children: list[list[int]] = [[] for _ in boxes]
    for i, box in enumerate(boxes):
        for p in box.parents:
            children[p].append(i)
    rank = {i: float(n) for layer in layers for n, i in enumerate(layer)}
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        for layer in layers if down else reversed(layers):
            for i in layer:
                near = boxes[i].parents if down else children[i]
                if near:
                    rank[i] = sum(rank[j] for j in near) / len(near)
            layer.sort(key=lambda i: rank[i])
            for n, i in enumerate(layer):
                rank[i] = float(n)


def _places(boxes: Sequence[GraphBox], layers: list[list[int]]) -> list[tuple[float, float]]:
    """The middle of each box; layers are centred on the widest."""
    widths = [sum(boxes[i].width + GAP for i in layer) - GAP for layer in layers]
    widest = max(widths, default=0.0)
    place = [(0.0, 0.0)] * len(boxes)
    for n, layer in enumerate(layers):
        x = MARGIN + (widest - widths[n]) / 2
        for i in layer:
            place[i] = (x + boxes[i].width / 2, MARGIN + HEIGHT / 2 + n * LAYER)
            x += boxes[i].width + GAP
    return place


def _drawn(box: GraphBox, x: float, y: float) -> str:
    corner = f'x="{x - box.width / 2:.1f}" y="{y - HEIGHT / 2:.1f}"'
    size = f'width="{box.width:.1f}" height="{HEIGHT:.0f}"'
    return (
        f'<g class="{escape(box.kind)}"><rect {corner} {size}/>'
        f'<text x="{x:.1f}" y="{y - 2:.1f}">{escape(box.title)}</text>'
        f'<text class="type" x="{x:.1f}" y="{y + 13:.1f}">{escape(box.subtitle)}</text></g>'
    )
