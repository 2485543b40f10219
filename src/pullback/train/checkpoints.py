"""A folder of checkpoints, one file for each step that was kept."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from pullback.core.errors import FileFormatError, ShapeError
from pullback.files import load, save

__all__ = ["Checkpoints"]

NAME = re.compile(r"step-(\d{9,})\.safetensors")


class Checkpoints:
    """The last `keep` checkpoints of a run in `folder`.

    Save everything that the next step depends on (parameters, the optimiser's state, keys), and a
    run that was ended at any moment goes on with the same bits as one that was not.

    >>> import tempfile
    >>> kept = pb.train.Checkpoints(tempfile.mkdtemp(), keep=2)
    >>> for step in range(4):
    ...     kept.save(step, {"w": pb.ones(2) * step})
    >>> kept.steps()
    [2, 3]
    >>> kept.resume({"w": pb.zeros(2)})
    (4, {'w': tensor([3., 3.], float32, cpu)})
    """

    def __init__(self, folder: str | os.PathLike[str], keep: int = 3):
        if keep < 1:
            raise ShapeError(f"Checkpoints: keep must be at least 1, got {keep}.")
        self.folder = Path(folder)
        self.keep = keep
        self.folder.mkdir(parents=True, exist_ok=True)

    def steps(self) -> list[int]:
        """The steps that there are checkpoints of, in order."""
        names = (NAME.fullmatch(p.name) for p in self.folder.iterdir())
        return sorted(int(m[1]) for m in names if m)

    def path(self, step: int) -> Path:
        return self.folder / f"step-{step:09d}.safetensors"

    def save(self, step: int, tree: Any) -> None:
        """Keep the tree as it is after `step`, and remove the oldest beyond `keep`."""
        save(self.path(step), tree)
        for old in self.steps()[: -self.keep]:
            self.path(old).unlink(missing_ok=True)

    def resume(self, tree: Any) -> tuple[int, Any]:
        """The step to go on with, and the tree of the last checkpoint, or (0, `tree`) without one.

        `tree` says what the checkpoint looks like. A damaged file is passed over for the one before
        it; where all are damaged, the last error is raised.
        """
        error: FileFormatError | None = None
        for step in reversed(self.steps()):
            try:
                return step + 1, load(self.path(step), like=tree)
            except FileFormatError as found:
                error = error or found
        if error is not None:
            raise error
        return 0, tree
