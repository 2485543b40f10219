"""Compiled code on disk, for all runtimes: files that nobody but this user can have written.

Whoever can write an entry can run code as whoever loads it. So there is a folder for each user,
which belongs to that user and is closed to others, whatever the folder around it is; an entry is a
plain file of that user's that holds a digest of its own name and contents. Everything else, be it
damaged, exchanged, foreign, a link or a pipe, counts as no entry, and the next write replaces it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["LIMIT", "CodeCache", "cache_directory", "clear", "usage"]

MAGIC = b"pullback-code-2\n"  # a change of the layout gets a new number
HEAD = len(MAGIC) + hashlib.sha256().digest_size
# An entry has some 6 kB on a CPU and 60 kB on CUDA. All tests together write about 100 MB: no
# program should ever miss what it has compiled before, and no user should notice the disk space.
LIMIT = 256 << 20  # bytes that each runtime may keep, see above
ROOM = LIMIT // 4  # that is made when the limit is reached
SWEEPS = 64  # one in so many new entries looks at the size of all
REFRESH = 3600.0  # seconds for which the time of the last use may be wrong
_PRIVATE = 0o700  # the mode of a folder that only this user may enter
_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def cache_directory() -> Path | None:
    """Where compiled code is kept: $PULLBACK_CACHE_DIR (none if empty), or the user's cache."""
    chosen = os.environ.get("PULLBACK_CACHE_DIR")
    if chosen is not None:
        return Path(chosen) if chosen else None
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "pullback"
    except RuntimeError:  # no home directory
        return None


class CodeCache:
    """The entries of one runtime by their keys, which are hexadecimal digests."""

    def __init__(self, runtime: str):
        self._runtime = runtime

    def read(self, key: str) -> bytes | None:
        """The code stored under `key`, or None if there is none that can be trusted."""
        try:
            with self._folder() as folder:
                data = None if folder is None else _contents(folder, key)
        except OSError:
            return None
        if data is None or data[:HEAD] != self._head(key, data[HEAD:]):
            return None
        return data[HEAD:]

    def write(self, key: str, code: bytes) -> None:
        """Store `code` in one step; a full or read-only disk costs time, not the result."""
        with contextlib.suppress(OSError), self._folder(make=True) as folder:
            if folder is None:
                return
            if int(key[:4], 16) % SWEEPS == 0:
                _sweep(folder)
            _replace(folder, key, self._head(key, code) + code)

    def _head(self, key: str, code: bytes) -> bytes:
        name = f"{self._runtime}/{key}\n".encode()
        return MAGIC + hashlib.sha256(MAGIC + name + code).digest()

    @contextmanager
    def _folder(self, make: bool = False) -> Iterator[int | None]:
        """The descriptor of this user's folder; None if there is none, or it is not ours."""
        base = cache_directory()
        if base is None:
            yield None
            return
        path = base / f"{self._runtime}-{os.geteuid()}"
        if make:
            _make(path)
        folder = os.open(path, _READ | os.O_DIRECTORY)
        try:
            found = os.fstat(folder)
            ours = found.st_uid == os.geteuid()
            if ours and found.st_mode & _OTHERS:
                os.fchmod(folder, _PRIVATE)
            yield folder if ours else None
        finally:
            os.close(folder)


def _make(path: Path) -> None:
    """Make a folder and those around it, closed to others whatever the umask is."""
    if path.is_dir():
        return
    _make(path.parent)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, _PRIVATE)
        os.chmod(path, _PRIVATE)


def _contents(folder: int, name: str) -> bytes | None:
    """What is in a plain file of ours that others can't write; it is marked as used."""
    # Opening a pipe would wait for whoever writes to it, but for O_NONBLOCK.
    file = os.open(name, _READ | os.O_NONBLOCK, dir_fd=folder)
    try:
        found = os.fstat(file)
        if not _is_ours(found):
            return None
        if abs(time.time() - found.st_mtime) > REFRESH:
            with contextlib.suppress(OSError):
                os.utime(file)
        with open(file, "rb", closefd=False) as stream:
            return stream.read()
    finally:
        os.close(file)


def _is_ours(found: os.stat_result) -> bool:
    owned = found.st_uid == os.geteuid() and not found.st_mode & _OTHERS
    return owned and stat.S_ISREG(found.st_mode)


def _replace(folder: int, name: str, data: bytes) -> None:
    """Write a file so that other processes see all of it or nothing; no rest stays behind."""
    temporary = f".{name}.{os.urandom(8).hex()}"
    try:
        file = os.open(temporary, _WRITE, 0o600, dir_fd=folder)
        with open(file, "wb") as stream:
            os.fchmod(file, 0o600)  # a umask may have taken our own permissions
            stream.write(data)
        os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    finally:  # whatever went wrong, an interrupt too
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=folder)


def _sweep(folder: int) -> None:
    """Beyond the limit, remove what was not used for longest, and rests of killed processes."""
    found: list[tuple[float, int, str]] = []
    for name in os.listdir(folder):
        with contextlib.suppress(OSError):  # another process was faster
            entry = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if name.startswith(".") and time.time() - entry.st_mtime > REFRESH:
                os.unlink(name, dir_fd=folder)
            else:
                found.append((entry.st_mtime, max(entry.st_size, entry.st_blocks * 512), name))
    total = sum(size for _, size, _ in found)
    if total <= LIMIT:
        return
    for _, size, name in sorted(found):
        if total <= LIMIT - ROOM:
            return
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=folder)
        total -= size


# -- the whole cache -------------------------------------------------------------------------------


def _folders() -> list[Path]:
    """This user's folders of all runtimes."""
    base = cache_directory()
    if base is None or not base.is_dir():
        return []
    found = base.glob(f"*-{os.geteuid()}")
    return sorted(p for p in found if p.is_dir() and not p.is_symlink())


def _entries() -> Iterator[tuple[Path, int]]:
    """The plain files of ours in these folders, and the bytes that each takes."""
    for folder in _folders():
        for path in folder.iterdir():
            with contextlib.suppress(OSError):  # another process was faster
                found = path.lstat()
                if _is_ours(found):
                    yield path, max(found.st_size, found.st_blocks * 512)


def usage() -> tuple[int, int]:
    """How many entries this user's cache has, and how many bytes they take."""
    sizes = [size for _, size in _entries()]
    return len(sizes), sum(sizes)


def clear() -> int:
    """Remove this user's entries; how many bytes they took."""
    freed = 0
    for path, size in _entries():
        with contextlib.suppress(OSError):
            path.unlink()
            freed += size
    return freed
