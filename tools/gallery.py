"""Run the examples of the gallery and keep what they print and draw for the documentation.

python tools/gallery.py            all of them, some minutes on 2 cores
python tools/gallery.py pinn       one of them
"""

from __future__ import annotations

import argparse
import contextlib
import io
import runpy
import sys
from pathlib import Path
from time import perf_counter

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples" / "gallery").glob("*.py"))
FOLDER = ROOT / "docs" / "gallery" / "pictures"


def keep(path: Path) -> None:
    """Run one example; write its output and its picture."""
    out = io.StringIO()
    start = perf_counter()
    with contextlib.redirect_stdout(out):
        picture = runpy.run_path(str(path))["main"]()
    print(f"{path.stem}: {perf_counter() - start:.0f} s\n{out.getvalue()}")
    (FOLDER / f"{path.stem}.txt").write_text(out.getvalue(), encoding="utf-8")
    drawn = f'<div class="picture">{picture}</div>\n'
    (FOLDER / f"{path.stem}.html").write_text(drawn, encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", help="all if none is given")
    names = parser.parse_args().names
    unknown = set(names) - {p.stem for p in EXAMPLES}
    if unknown:
        parser.error(f"there is no example {', '.join(sorted(unknown))} in examples/gallery")
    FOLDER.mkdir(parents=True, exist_ok=True)
    for path in EXAMPLES:
        if not names or path.stem in names:
            keep(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
