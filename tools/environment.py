"""Create a virtual environment with pip, also where the Python lacks ensurepip (bare Debian)."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import subprocess
import sys
import tempfile
import urllib.error
import urllib.parse
import urllib.request
import venv
from pathlib import Path

OLDEST = (3, 10)
PIP_INDEX = "https://pypi.org/pypi/pip/json"


def is_usable(python: Path) -> bool:
    """True if `python` starts, is new enough and has pip."""
    probe = f"import sys, pip; sys.exit(sys.version_info < {OLDEST})"
    try:
        done = subprocess.run([python, "-c", probe], stderr=subprocess.DEVNULL, check=False)
    except OSError:
        return False
    return done.returncode == 0


def downloaded_pip(folder: Path) -> Path:
    """The newest pip wheel from PyPI, checked against its published digest."""
    with urllib.request.urlopen(PIP_INDEX, timeout=60) as page:
        files = json.load(page)["urls"]
    wheel = next(file for file in files if file["packagetype"] == "bdist_wheel")
    address = urllib.parse.urljoin(PIP_INDEX, wheel["url"])  # a mirror may give a relative one
    with urllib.request.urlopen(address, timeout=60) as page:
        data = page.read()
    if hashlib.sha256(data).hexdigest() != wheel["digests"]["sha256"]:
        raise SystemExit(f"environment: {wheel['filename']} does not match its digest. Try again.")
    path = folder / wheel["filename"]
    path.write_bytes(data)
    return path


def install_pip(python: Path) -> None:
    """Put pip into an environment that was made without it; a pip wheel can install itself."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            wheel = downloaded_pip(Path(folder))
        except urllib.error.URLError as error:
            hint = "Install ensurepip (Debian: apt install python3-venv)."
            raise SystemExit(
                f"environment: no pip from {PIP_INDEX}, got {error.reason}. {hint}"
            ) from None
        subprocess.run([python, wheel / "pip", "install", "--quiet", wheel], check=True)


def main(folder: str) -> None:
    """Make `folder` a virtual environment with pip; leave it alone if it is one already."""
    if sys.version_info < OLDEST:
        raise SystemExit(
            f"environment: Python >= 3.10 needed, got {sys.version.split()[0]}. Set PYTHON=."
        )
    python = Path(folder) / "bin" / "python"
    if is_usable(python):
        return
    has_ensurepip = importlib.util.find_spec("ensurepip") is not None
    venv.create(folder, clear=True, symlinks=True, with_pip=has_ensurepip)
    if not has_ensurepip:
        install_pip(python)


if __name__ == "__main__":
    main(sys.argv[1])
