"""Files of strangers, drawn at random and by hand: `pb.load` gives what they hold or a clear error,
takes no more memory than they have bytes, and reads nothing beside them.

PULLBACK_FULL draws a hundred times as many.
"""

from __future__ import annotations

import io
import json
import os
import random
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.core import pytrees

DRAWS = 40_000 if os.environ.get("PULLBACK_FULL") else 400
MEMORY = 4 << 20  # bytes that a load of a file of some hundred bytes may take

# What stands in place of a part of a header.
STRANGE: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**63 - 1, 2**63, 2**64, 10**400, 0.5, 1e308, "", "F32",
    "F64", "I64", "BF16", "BOOL", "array", "\x00", "../../etc/passwd", "/etc/passwd", "x" * 5000,
    [], {},
    [[]], [0], [0, 0], [0, 8], [8, 0], [-1, 8], [2**62, 2**62], [1] * 70,
    [0, 2**63 - 1], [2**40, 0],
    {"dtype": "F32"}, {"array": "a"}, {"list": [{"array": "a"}] * 50}, {"int": ["n", "f" * 4000]},
    {"float": ["n", "0x1p99999"]}, {"class": ["os.system", []]}, {"dict": [[None, None]]},
]  # fmt: skip


def parts(tree: Any) -> list[tuple[Any, Any]]:
    """Each container in a JSON tree with each of its keys."""
    found: list[tuple[Any, Any]] = []
    if isinstance(tree, dict):
        items: Any = tree.items()
    elif isinstance(tree, list):
        items = enumerate(tree)
    else:
        return found
    for key, value in items:
        found.append((tree, key))
        found += parts(value)
    return found


def mutated(tree: Any, draw: random.Random) -> None:
    """Change one or two places of a JSON tree: another value, another key, a part left out."""
    for _ in range(draw.randint(1, 2)):
        container, key = draw.choice(parts(tree))
        kind = draw.random()
        if kind < 0.7:
            container[key] = json.loads(json.dumps(draw.choice(STRANGE)))
        elif kind < 0.85:
            del container[key]
        elif isinstance(container, dict):
            container[str(draw.choice(STRANGE))[:50]] = container[key]
        else:
            container.append(container[key])
        if not parts(tree):
            return


def file_of(header: Any, data: bytes) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def loaded(path: Path, **options: Any) -> str:
    """What became of a load: "loaded", or the text of its `FileFormatError`."""
    tracemalloc.start()
    try:
        tree = pb.load(path, **options)
    except pb.FileFormatError as error:
        return str(error)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < MEMORY, f"{peak} bytes for a file of {path.stat().st_size}"
    for leaf in pytrees.leaves(tree):
        if isinstance(leaf, pb.Tensor):
            leaf.tolist()
    return "loaded"


@pytest.mark.parametrize("like", [False, True])
def test_headers_changed_at_random_are_read_or_refused(tmp_path: Path, like: bool) -> None:
    path = tmp_path / "x.safetensors"
    tree = {
        "a": pb.ones(3),
        "b": (pb.tensor([1j]), None, 1.5),
        "c": [True, "s", 7, 2j],
        3: pb.eye(2),
    }
    pb.save(path, tree)
    whole = path.read_bytes()
    size = int.from_bytes(whole[:8], "little")
    data = whole[8 + size :]
    options = {"like": tree} if like else {}
    draw = random.Random(5 + like)
    outcomes = set()
    for _ in range(DRAWS):
        header = json.loads(whole[8 : 8 + size])
        if draw.random() < 0.5:
            mutated(header, draw)
        else:
            inner = json.loads(header["__metadata__"]["pullback"])
            mutated(inner, draw)
            header["__metadata__"]["pullback"] = json.dumps(inner)
        path.write_bytes(file_of(header, data))
        told = loaded(path, **options)
        assert len(told) < 500
        outcomes.add(told)
    assert "loaded" in outcomes and len(outcomes) > 50


def test_bytes_of_an_npz_changed_at_random_are_read_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, a=np.ones(3), b=np.arange(4, dtype=np.int8))
    whole = path.read_bytes()
    np.savez_compressed(path, a=np.ones(300))
    packed = path.read_bytes()
    draw = random.Random(7)
    refused = 0
    for n in range(DRAWS):
        damaged = bytearray(packed if n % 2 else whole)
        for _ in range(draw.randint(1, 3)):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        if n % 5 == 0:
            del damaged[draw.randrange(len(damaged)) :]
        path.write_bytes(damaged)
        refused += loaded(path) != "loaded"
    assert DRAWS / 4 < refused < DRAWS


# -- headers of arrays in an npz -------------------------------------------------------------------


def npy(header: str, data: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    text = header.encode() + b"\n"
    return b"\x93NUMPY" + version + struct.pack("<H", len(text)) + text + data


def described(descr: str = "'<f8'", shape: str = "(1,)", columns: str = "False") -> str:
    return f"{{'descr': {descr}, 'fortran_order': {columns}, 'shape': {shape}}}"


def archive(entries: list[tuple[str, bytes]], method: int = zipfile.ZIP_STORED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as file:
        for name, data in entries:
            file.writestr(name, data)
    return out.getvalue()


def marked(flag: int = 0, method: int | None = None) -> bytes:
    """A sound archive with flags (encryption) or a method of compression that it has not."""
    data = bytearray(archive([("a.npy", npy(described(), bytes(8)))]))
    entry = data.find(b"PK\x01\x02")
    for flags, kinds in ((6, 8), (entry + 8, entry + 10)):
        data[flags] |= flag
        data[kinds] = data[kinds] if method is None else method
    return bytes(data)


def overlapping() -> bytes:
    """Two entries of the directory that stand for the same bytes."""
    array = npy(described(shape="(100,)"), bytes(800))
    data = archive([("a.npy", array)])
    at, end = data.find(b"PK\x01\x02"), data.find(b"PK\x05\x06")
    again = data[at:end].replace(b"a.npy", b"b.npy")
    tail = bytearray(data[end:])
    tail[8:12] = struct.pack("<HH", 2, 2)
    tail[12:16] = struct.pack("<I", 2 * (end - at))
    return data[:end] + again + bytes(tail)


UNSOUND: dict[str, Callable[[], bytes]] = {
    "a shape of terabytes": lambda: archive([("a.npy", npy(described(shape="(10**12,)")))]),
    "terabytes in digits": lambda: archive([("a.npy", npy(described(shape="(1000000000000,)")))]),
    "gigabytes": lambda: archive([("a.npy", npy(described(shape="(900000000,)")))]),
    "sizes whose product overflows": lambda: archive(
        [("a.npy", npy(described(shape="(4294967296, 4294967296)")))]
    ),
    "a negative size": lambda: archive([("a.npy", npy(described(shape="(-1,)"), bytes(8)))]),
    "two negative sizes": lambda: archive([("a.npy", npy(described(shape="(-1, -1)"), bytes(8)))]),
    "a dtype with code": lambda: archive([("a.npy", npy(described("'|O'"), b"cos\nsystem\n"))]),
    "a record": lambda: archive([("a.npy", npy(described("[('a', '<f8')]"), bytes(8)))]),
    "text": lambda: archive([("a.npy", npy(described("'<U2'"), bytes(8)))]),
    "dates": lambda: archive([("a.npy", npy(described("'<M8[s]'"), bytes(8)))]),
    "bytes of no kind": lambda: archive([("a.npy", npy(described("'|V7'"), bytes(7)))]),
    "a header that calls": lambda: archive([("a.npy", npy("__import__('os').system('ls')"))]),
    "a header without end": lambda: archive([("a.npy", npy("(" * 9000))]),
    "another version": lambda: archive([("a.npy", npy(described(), bytes(8), b"\x09\x00"))]),
    "more data than described": lambda: archive([("a.npy", npy(described(), bytes(80)))]),
    "less data than described": lambda: archive([("a.npy", npy(described(), bytes(7)))]),
    "no array": lambda: archive([("a.npy", b"hello")]),
    "a folder": lambda: archive([("a/", b"")]),
    "an encrypted entry": lambda: marked(flag=1),
    "an unknown compression": lambda: marked(method=99),
    "entries that overlap": overlapping,
}


@pytest.mark.parametrize("case", UNSOUND)
def test_hostile_npz_files_are_refused(tmp_path: Path, case: str) -> None:
    path = tmp_path / "bad.npz"
    path.write_bytes(UNSOUND[case]())
    assert loaded(path).startswith("load: bad.npz ")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_twice_in_an_npz_is_refused(tmp_path: Path) -> None:
    array = npy(described(), bytes(8))
    path = tmp_path / "bad.npz"
    path.write_bytes(archive([("a.npy", array), ("a.npy", array)]))
    assert "'a' stands there twice" in loaded(path)


def test_names_are_names_only(tmp_path: Path) -> None:
    """A path in a file is the key of an array, never a file that is read or written."""
    array = npy(described(), struct.pack("<d", 1.5))
    path = tmp_path / "x.npz"
    path.write_bytes(archive([("../../outside.npy", array), ("/etc/passwd", array)]))
    found = pb.load(path)
    assert {k: v.tolist() for k, v in found.items()} == {
        "../../outside": [1.5],
        "/etc/passwd": [1.5],
    }
    assert os.listdir(tmp_path) == ["x.npz"]


def test_arrays_of_other_orders_are_read(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    rows = np.arange(6.0).reshape(2, 3)
    np.savez(path, columns=np.asfortranarray(rows), big=rows.astype(">f4"), none=np.zeros((0, 2)))
    found = pb.load(path)
    assert found["columns"].tolist() == rows.tolist() and found["columns"].dtype is pb.float64
    assert found["big"].tolist() == rows.tolist() and found["big"].dtype is pb.float32
    assert found["none"].shape == (0, 2)


def test_an_array_that_a_tree_names_often_is_refused(tmp_path: Path) -> None:
    """Copies of one large array would take much more memory than the file has bytes."""
    path = tmp_path / "x.safetensors"
    header = {
        "a": {"dtype": "F32", "shape": [1000], "data_offsets": [0, 4000]},
        "__metadata__": {"pullback": json.dumps({"list": [{"array": "a"}] * 2000})},
    }
    path.write_bytes(file_of(header, bytes(4000)))
    assert "describes the array 'a' twice" in loaded(path)


def test_a_message_holds_little_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(file_of({"x" * 100_000: 1}, b""))
    assert len(loaded(path)) < 500
