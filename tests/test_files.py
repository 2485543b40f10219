"""`pb.save` and `pb.load`: every bit comes back, and a file that is not sound is refused."""

from __future__ import annotations

import json
import math
import os
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import safetensors.numpy

import pullback as pb
from pullback.core import dtypes, pytrees

SPECIAL = [0.0, -0.0, math.inf, -math.inf, math.nan, 1e-45, 1.5]


class Layer(NamedTuple):
    weight: Any
    bias: Any


@dataclass
class Model:
    first: Layer
    rate: float


def bits(x: Any) -> tuple:
    array = x.numpy() if isinstance(x, pb.Tensor) else np.asarray(x)
    return x.dtype, array.shape, np.ascontiguousarray(array).tobytes()


def same(a: Any, b: Any) -> bool:
    """Whether two trees have the same containers and the same bits."""
    left, right = pytrees.flatten(a), pytrees.flatten(b)
    if left[1] != right[1]:
        return False
    for x, y in zip(left[0], right[0], strict=True):
        if type(x) is not type(y):
            return False
        equal = bits(x) == bits(y) if isinstance(x, pb.Tensor) else repr(x) == repr(y)
        if not equal:
            return False
    return True


def tree() -> dict:
    return {
        "layers": [Layer(pb.ones((2, 3)), None), (pb.tensor(SPECIAL), pb.zeros((0, 4)))],
        3: pb.tensor([[1, 2], [3, 4]], dtype="uint16").T,
        "numbers": (1, -(10**40), True, "é\n", *SPECIAL, complex(-0.0, math.nan)),
        "empty": {},
    }


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=lambda d: d.name)
@pytest.mark.parametrize("mmap", [False, True])
@pytest.mark.parametrize("shape", [(), (0, 3), (1,), (5, 7)])
def test_every_dtype_comes_back_with_its_bits(tmp_path, dtype, shape, mmap):
    x = pb.astype(pb.reshape(pb.arange(math.prod(shape)), shape), dtype)
    path = tmp_path / "x.safetensors"
    pb.save(path, [x, pb.ones(3, dtype="int8")])
    back = pb.load(path, mmap=mmap)
    assert same(back, [x, pb.ones(3, dtype="int8")])


def test_containers_and_numbers_come_back(tmp_path):
    plain = {k: v for k, v in tree().items() if k != "layers"}
    pb.save(tmp_path / "t", plain)
    assert same(pb.load(tmp_path / "t"), plain)


def test_classes_are_loaded_into_an_object_only(tmp_path):
    path = tmp_path / "m.safetensors"
    model = Model(Layer(pb.tensor(SPECIAL), pb.ones(2)), 0.5)
    pb.save(path, model)
    with pytest.raises(pb.FileFormatError, match=r"holds an object of .*Model.*like="):
        pb.load(path)
    blank = Model(Layer(pb.zeros(7), pb.zeros(2)), 0.0)
    assert same(pb.load(path, like=blank), model)


def test_a_file_is_what_others_read_and_write(tmp_path):
    path = tmp_path / "x.safetensors"
    pb.save(path, {"a": {"w": pb.tensor(SPECIAL)}, "n": pb.tensor([1, 2], dtype="int16")})
    theirs = safetensors.numpy.load_file(path)
    assert theirs["a.w"].tobytes() == np.asarray(SPECIAL, np.float32).tobytes()
    assert theirs["n"].dtype == np.int16
    safetensors.numpy.save_file({"q": np.arange(6.0).reshape(2, 3)}, path)
    assert same(pb.load(path), {"q": pb.reshape(pb.arange(6, dtype="float64"), (2, 3))})


def test_names_map_the_leaves_to_another_librarys(tmp_path):
    path = tmp_path / "x.safetensors"
    arrays = {"net.0.weight": np.ones((2, 2), np.float32), "net.0.bias": np.zeros(2, np.float32)}
    safetensors.numpy.save_file(arrays, path)
    like = {"w": pb.zeros((2, 2)), "b": pb.ones(2)}
    by_dict = pb.load(path, like=like, names={"w": "net.0.weight", "b": "net.0.bias"})
    long = {"w": "weight", "b": "bias"}
    by_function = pb.load(path, like=like, names=lambda n: f"net.0.{long[n]}")
    assert same(by_dict, {"w": pb.ones((2, 2)), "b": pb.zeros(2)})
    assert same(by_dict, by_function)


def test_paths_that_read_alike_are_kept_apart(tmp_path):
    alike = {"a.b": pb.ones(1), "a": {"b": pb.zeros(1)}, 0: pb.ones(2), "0": pb.zeros(2)}
    pb.save(tmp_path / "t", alike)
    assert same(pb.load(tmp_path / "t"), alike)


def test_npz_holds_bfloat16(tmp_path):
    arrays = {"x": pb.tensor(SPECIAL, dtype="bfloat16"), "file": pb.ones((2, 0))}
    pb.save(tmp_path / "a.npz", arrays)
    assert same(pb.load(tmp_path / "a.npz"), arrays)
    assert np.load(tmp_path / "a.npz")["file"].shape == (2, 0)


def test_a_failed_write_leaves_the_file_that_was_there(tmp_path, monkeypatch):
    path = tmp_path / "x.safetensors"
    pb.save(path, pb.ones(2))
    before = path.read_bytes()

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        pb.save(path, pb.zeros(5))
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == [path.name]


def test_mapped_arrays_read_the_file_and_are_never_written_to(tmp_path):
    path = tmp_path / "x.safetensors"
    pb.save(path, {"x": pb.ones(1000)})
    before = path.read_bytes()
    x = pb.load(path, mmap=True)["x"]
    x += 1
    x[3] = 7
    assert float(pb.sum(x)) == 2005
    assert path.read_bytes() == before


# -- files that are not sound ----------------------------------------------------------------------


def written(path: Path, header: Any, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def entry(dtype: Any = "F32", shape=(2,), offsets=(0, 8), **more) -> dict:
    return {"x": {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets), **more}}


HOSTILE = {
    "no header": (b"", b""),
    "not JSON": (b"{nonsense}", b""),
    "not UTF-8": (b'{"\xff": 1}', b""),
    "a list": ([], b""),
    "nested without end": (b"[" * 200_000, b""),
    "a key twice": (b'{"x": 1, "x": 2}', b""),
    "an entry that is a number": ({"x": 1}, b""),
    "fields missing": ({"x": {"dtype": "F32"}}, b""),
    "a field too many": (entry(code="import os"), bytes(8)),
    "an unknown dtype": (entry("F99"), bytes(8)),
    "a dtype that is a list": (entry(["F32"]), bytes(8)),
    "a negative size": (entry(shape=(-2,), offsets=(0, 8)), bytes(8)),
    "a huge size": (entry(shape=(2**62, 2**62)), bytes(8)),
    "a size that is a bool": (entry(shape=(True, 2)), bytes(8)),
    "a size that is a float": (entry(shape=(2.0,)), bytes(8)),
    "offsets beyond the file": (entry(offsets=(8, 16)), bytes(8)),
    "negative offsets": (entry(offsets=(-8, 0)), bytes(8)),
    "offsets in reverse": (entry(offsets=(8, 0)), bytes(8)),
    "more data than described": (entry(), bytes(9)),
    "less data than described": (entry(), bytes(7)),
    "arrays that overlap": ({**entry(), "y": entry()["x"]}, bytes(8)),
    "a gap": (
        {**entry(), "y": {"dtype": "U8", "shape": [1], "data_offsets": [9, 10]}},
        bytes(10),
    ),
    "metadata that are numbers": ({"__metadata__": {"a": 1}, **entry()}, bytes(8)),
    "a tree that is not JSON": ({"__metadata__": {"pullback": "{"}, **entry()}, bytes(8)),
    "a tree of unknown nodes": ({"__metadata__": {"pullback": '{"eval":"1"}'}}, b""),
    "a tree with an array it lacks": ({"__metadata__": {"pullback": '{"array":"y"}'}}, b""),
    "an array named by a number": ({"__metadata__": {"pullback": '{"array":1}'}}, b""),
    "a float that is none": ({"__metadata__": {"pullback": '{"float":["n","x"]}'}}, b""),
    "an int that is none": ({"__metadata__": {"pullback": '{"int":["n",[]]}'}}, b""),
    "a key that is a list": ({"__metadata__": {"pullback": '{"dict":[[[],null]]}'}}, b""),
    "a list that is a string": ({"__metadata__": {"pullback": '{"list":"ab"}'}}, b""),
    "a complex array of ints": (
        {"__metadata__": {"pullback": '{"complex_array":"x"}'}, **entry("I32")},
        bytes(8),
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
@pytest.mark.parametrize("mmap", [False, True])
def test_hostile_files_are_refused(tmp_path, case, mmap):
    header, data = HOSTILE[case]
    path = written(tmp_path / "bad.safetensors", header, data)
    with pytest.raises(pb.FileFormatError, match=r"load: bad\.safetensors "):
        pb.load(path, mmap=mmap)


def test_a_header_beyond_the_file_is_refused(tmp_path):
    path = tmp_path / "x"
    for content in (b"", b"\x01", (2**63).to_bytes(8, "little") + b"{}", b"\xff" * 8):
        path.write_bytes(content)
        with pytest.raises(pb.FileFormatError, match="no safetensors file"):
            pb.load(path)


def test_files_cut_at_any_byte_are_refused(tmp_path):
    path = tmp_path / "x"
    pb.save(path, {"a": pb.ones(3), "b": (1, pb.zeros(2, dtype="int8"))})
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(pb.FileFormatError):
            pb.load(path)


def test_files_with_random_damage_load_or_are_refused(tmp_path):
    path = tmp_path / "x"
    pb.save(path, {"a": pb.ones(3), "b": [None, 1.5, pb.tensor([1j]), "s"]})
    whole = path.read_bytes()
    draw = random.Random(1)
    refused = 0
    for _ in range(400):
        damaged = bytearray(whole)
        for _ in range(draw.randint(1, 3)):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        path.write_bytes(damaged)
        try:
            pb.load(path)
        except pb.FileFormatError:
            refused += 1
    assert 100 < refused < 400


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"nonsense"])
def test_damaged_npz_files_are_refused(tmp_path, content):
    (tmp_path / "x.npz").write_bytes(content)
    with pytest.raises(pb.FileFormatError, match="no sound npz"):
        pb.load(tmp_path / "x.npz")


def test_npz_files_with_pickles_are_refused(tmp_path):
    np.savez(tmp_path / "x.npz", a=np.asarray([{}], dtype=object))
    with pytest.raises(pb.FileFormatError, match="no sound npz"):
        pb.load(tmp_path / "x.npz")


# -- what users get wrong --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tree", "error", "words"),
    [
        ({"f": print}, pb.DTypeError, "'f' must be an array, a number or a string"),
        ({(1, 2): pb.ones(1)}, pb.DTypeError, "keys of dicts must be strings or integers"),
        ({"__metadata__": pb.ones(1)}, pb.DTypeError, "can't be called"),
    ],
)
def test_trees_that_files_do_not_hold(tmp_path, tree, error, words):
    with pytest.raises(error, match=words):
        pb.save(tmp_path / "x", tree)
    assert not os.listdir(tmp_path)


def test_what_does_not_fit_is_named(tmp_path):
    path = tmp_path / "x.safetensors"
    pb.save(path, {"w": pb.ones(2), "n": 1})
    cases = {
        "lacks 'v'": {"v": pb.ones(2)},
        "of shape": {"w": pb.ones(3)},
        "float64 of shape": {"w": pb.ones(2, dtype="float64")},
        "expected an array": {"n": pb.ones(())},
    }
    for words, like in cases.items():
        with pytest.raises(pb.FileFormatError, match=words):
            pb.load(path, like=like)
    with pytest.raises(FileNotFoundError):
        pb.load(tmp_path / "absent")
    with pytest.raises(TypeError, match="like="):
        pb.load(path, names={"a": "b"})
    with pytest.raises(pb.DTypeError, match="flat dict"):
        pb.save(tmp_path / "x.npz", [pb.ones(1)])


def test_a_traced_array_can_not_be_saved(tmp_path):
    with pytest.raises(pb.TraceError, match="save: 'value' is traced"):
        pb.jit(lambda x: pb.save(tmp_path / "x", x))(pb.ones(2))
