"""The cache of compiled code: what may be loaded, what is left behind, how large it gets."""

import os
import stat
from pathlib import Path

import pytest

from pullback.runtime import code_cache
from pullback.runtime.code_cache import CodeCache
from pullback.runtime.cuda import code as cuda_code
from runtime.native_kernels import run_python

KEY, OTHER = "1" * 64, "2" * 64


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CodeCache:
    monkeypatch.setenv("PULLBACK_CACHE_DIR", str(tmp_path / "around" / "cache"))
    return CodeCache("cpu")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "around" / "cache" / f"cpu-{os.geteuid()}"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_what_was_written_is_read(cache: CodeCache) -> None:
    assert cache.read(KEY) is None
    cache.write(KEY, b"code")
    assert cache.read(KEY) == b"code"
    cache.write(KEY, b"")
    assert cache.read(KEY) == b""


@pytest.mark.parametrize("mask", [0, 0o022, 0o777])
def test_folders_and_entries_are_closed_to_others(
    mask: int, cache: CodeCache, folder: Path
) -> None:
    before = os.umask(mask)
    try:
        cache.write(KEY, b"code")
        assert cache.read(KEY) == b"code"
    finally:
        os.umask(before)
    assert [mode(p) for p in (folder.parents[1], folder.parent, folder)] == [0o700] * 3
    assert mode(folder / KEY) == 0o600


def test_an_open_folder_of_ours_is_closed(cache: CodeCache, folder: Path) -> None:
    cache.write(KEY, b"code")
    folder.chmod(0o777)
    assert cache.read(KEY) == b"code"
    assert mode(folder) == 0o700


def test_an_entry_that_others_can_write_is_not_read(cache: CodeCache, folder: Path) -> None:
    for bits in (0o620, 0o602):
        cache.write(KEY, b"code")
        (folder / KEY).chmod(bits)
        assert cache.read(KEY) is None
    cache.write(KEY, b"code")
    assert cache.read(KEY) == b"code"


def test_a_folder_of_somebody_else_is_not_used(
    cache: CodeCache, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 54321)  # what is made belongs to another number
    cache.write(KEY, b"code")
    assert cache.read(KEY) is None
    assert list(folder.with_name("cpu-54321").iterdir()) == []


def test_an_entry_of_somebody_else_is_not_read(
    cache: CodeCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.write(KEY, b"code")
    fstat = os.fstat

    def foreign(file: int) -> os.stat_result:
        found = fstat(file)
        fields = list(found)
        fields[stat.ST_UID] += stat.S_ISREG(found.st_mode)
        return os.stat_result(fields)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fstat", foreign)
        assert cache.read(KEY) is None
    assert cache.read(KEY) == b"code"


def test_an_exchanged_entry_is_not_read(cache: CodeCache, folder: Path) -> None:
    cache.write(KEY, b"code")
    cache.write(OTHER, b"other code")
    (folder / KEY).replace(folder / OTHER)
    assert cache.read(OTHER) is None
    cache.write(KEY, b"code")
    folder.rename(folder.with_name(f"cuda-{os.geteuid()}"))
    assert CodeCache("cuda").read(KEY) is None


@pytest.mark.parametrize("kind", ["pipe", "link", "link to nothing", "folder", "damaged"])
def test_what_is_no_entry_is_neither_followed_nor_fatal(
    kind: str, cache: CodeCache, folder: Path, tmp_path: Path
) -> None:
    cache.write(KEY, b"code")
    entry, aside = folder / KEY, tmp_path / "aside"
    entry.rename(aside)
    if kind == "pipe":
        os.mkfifo(entry)
    elif kind == "link":
        entry.symlink_to(aside)
    elif kind == "link to nothing":
        entry.symlink_to(tmp_path / "nothing")
    elif kind == "folder":
        entry.mkdir()
    else:
        entry.write_bytes(aside.read_bytes()[:-1])
    assert cache.read(KEY) is None
    cache.write(KEY, b"new code")
    assert cache.read(KEY) == (None if kind == "folder" else b"new code")
    assert not (tmp_path / "nothing").exists()
    assert [p.name for p in folder.iterdir()] == [KEY]


def test_a_folder_that_is_a_link_or_a_pipe_is_not_used(
    cache: CodeCache, folder: Path, tmp_path: Path
) -> None:
    folder.parent.mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    folder.symlink_to(tmp_path / "elsewhere")
    cache.write(KEY, b"code")
    assert list((tmp_path / "elsewhere").iterdir()) == []
    folder.unlink()
    os.mkfifo(folder)
    cache.write(KEY, b"code")
    assert cache.read(KEY) is None


def test_import_does_not_wait_for_a_pipe(tmp_path: Path) -> None:
    environment = {"PULLBACK_CACHE_DIR": str(tmp_path)}
    code = "import pullback.runtime.cpu.native"
    run_python(code, **environment)
    for entry in [p for p in tmp_path.rglob("*") if p.is_file()]:
        entry.unlink()
        os.mkfifo(entry)
    run_python(code, **environment)


def test_a_full_disk_neither_raises_nor_leaves_anything(tmp_path: Path) -> None:
    """A limit on the size of files takes its place: writing stops in the middle."""
    code = """
        import resource
        from pullback.runtime.code_cache import CodeCache
        from pullback.runtime.cuda import code
        code.compile_source = lambda source, target, options: source.encode() * 1000
        code.version = lambda: (13, 0)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        CodeCache("cpu").write("1" * 64, bytes(1 << 20))
        print(CodeCache("cpu").read("1" * 64), len(code.machine_code("kernel", "sm_90")))
    """
    assert run_python(code, PULLBACK_CACHE_DIR=str(tmp_path)) == "None 6000"
    assert [p for p in tmp_path.rglob("*") if not p.is_dir()] == []


def test_an_interrupt_leaves_no_temporary_file(
    cache: CodeCache, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cache.write(KEY, b"code")
    assert list(folder.iterdir()) == []


def test_the_size_is_bounded_and_what_was_used_last_stays(
    cache: CodeCache, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_cache, "LIMIT", 100 * 4096)
    monkeypatch.setattr(code_cache, "ROOM", 20 * 4096)
    keys = [f"{k:04x}" + "0" * 60 for k in range(1000)]
    for k, key in enumerate(keys):
        cache.write(key, bytes(4000))
        os.utime(folder / key, (k, k))
        assert cache.read(keys[0]) is not None, "it was used just now"
    left = list(folder.iterdir())
    assert len(left) <= 100 + code_cache.SWEEPS
    assert cache.read(keys[-1]) is not None
    assert cache.read(keys[1]) is None


def test_rests_of_killed_processes_go(cache: CodeCache, folder: Path) -> None:
    cache.write(KEY, b"code")
    for name, age in ((".old", 0), (".new", None)):
        (folder / name).write_bytes(b"rest")
        if age is not None:
            os.utime(folder / name, (age, age))
    cache.write("0" * 64, b"code")
    assert sorted(p.name for p in folder.iterdir()) == [".new", "0" * 64, KEY]


@pytest.mark.parametrize("damage", ["none", "cut", "exchanged"])
def test_cuda_code_is_compiled_again_if_it_is_damaged(
    damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[str] = []

    def compile_source(source: str, target: str, options: object) -> bytes:
        compiled.append(source)
        return f"{source} for {target}".encode()

    monkeypatch.setenv("PULLBACK_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(cuda_code, "compile_source", compile_source)
    monkeypatch.setattr(cuda_code, "version", lambda: (13, 0))
    assert cuda_code.machine_code("a", "sm_90") == b"a for sm_90"
    (entry,) = [p for p in tmp_path.rglob("*") if p.is_file()]
    if damage == "cut":
        entry.write_bytes(entry.read_bytes()[:-3])
    elif damage == "exchanged":
        assert cuda_code.machine_code("b", "sm_90") == b"b for sm_90"
        (other,) = [p for p in tmp_path.rglob("*") if p.is_file() and p != entry]
        other.replace(entry)
    assert cuda_code.machine_code("a", "sm_90") == b"a for sm_90"
    assert compiled.count("a") == (1 if damage == "none" else 2)
