"""The `pullback` command and the examples: what they print, write and return."""

import base64
import contextlib
import io
import math
import re
import runpy
import struct
import sys
import zlib
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import pullback as pb
from pullback.cli import curvature, digits, main
from pullback.cli import demo as demo_command
from pullback.display import drawing
from pullback.display.progress import Progress
from pullback.display.report import Page, below
from pullback.runtime.cpu import native
from pullback.runtime.cuda.gpu import is_present

EXAMPLES = Path(__file__).parent.parent / "examples"


class Ended(NamedTuple):
    """How a command ended."""

    status: int
    out: str
    err: str


def command(*argv: object) -> Ended:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main([str(a) for a in argv])
    return Ended(status, out.getvalue(), err.getvalue())


class Outline(HTMLParser):
    """Elements that are open, and everything that a page would load."""

    ALONE = frozenset({"meta", "img", "path", "rect"})

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.seen.add(tag)
        self.loaded += [v for k, v in attrs if k in ("src", "href") and v]
        if tag not in self.ALONE:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.add(tag)

    def handle_endtag(self, tag):
        if tag not in self.ALONE:
            assert self.open.pop() == tag


# -- the demo --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ended, str]:
    """A small run of the demo, and its report."""
    pytest.importorskip("sklearn")
    path = tmp_path_factory.mktemp("demo") / "new" / "report.html"
    ended = command("demo", "--quick", "--out", path)
    return ended, path.read_text(encoding="utf-8")


def test_demo_passes_its_own_checks(demo):
    ended, page = demo
    assert ended.status == 0, ended.out
    assert "devices:\n  cpu" in ended.out
    assert "FAILED" not in ended.out
    assert re.search(r"(\d+) of \1 checks passed", ended.out)
    assert re.search(r"(\d+) of \1 checks passed", page)
    assert ended.out.rstrip().endswith("report.html")


def test_demo_reports_progress_off_a_terminal_as_lines(demo):
    ended, _ = demo
    assert "300/300" in ended.err
    assert "loss" in ended.err and "\r" not in ended.err


def test_demo_shows_equal_digests(demo):
    ended, page = demo
    digests = re.findall(r"\b[0-9a-f]{64}\b", ended.out)
    assert len(digests) >= 3 and len(set(digests)) == 1
    assert page.count(digests[0]) == len(digests)


def test_demo_report_is_well_formed_and_loads_nothing(demo):
    _, page = demo
    outline = Outline(page)
    assert not outline.open
    assert {"svg", "img", "table", "style"} <= outline.seen
    assert not outline.seen & {"script", "link", "iframe"}
    assert all(address.startswith("data:image/png;base64,") for address in outline.loaded)
    text = re.sub(r'src="[^"]*"', "", page)
    assert not re.search(r"https?:|@import|url\(|\bnan\b", text)


def test_demo_returns_1_when_a_check_fails(tmp_path):
    pytest.importorskip("sklearn")
    path = tmp_path / "report.html"
    ended = command("demo", "--quick", "--steps", 1, "--out", path)
    assert ended.status == 1
    assert re.search(r"FAILED +test accuracy", ended.out)
    assert "✗<span> failed" in path.read_text(encoding="utf-8")


@pytest.mark.skipif(is_present(), reason="there is a GPU")
def test_demo_on_a_device_that_is_not_there_says_so(tmp_path):
    ended = command("demo", "--quick", "--device", "cuda", "--out", tmp_path / "report.html")
    assert ended.status == 2
    assert ended.err.startswith("demo: cuda: ")


def test_demo_notices_a_wrong_second_derivative(monkeypatch):
    params = pb.map_tree(lambda p: p.astype("float64"), digits.network(pb.random.key(0)))
    x, y = pb.random.uniform(pb.random.key(1), (5, 64), dtype="float64"), pb.arange(5)
    v = curvature.random_direction(params, pb.random.key(2))

    def checks():
        products = curvature.product_checks(lambda p: digits.loss(p, x, y), params, v)
        return [c.passed for c in [*products, curvature.bias_check(params, x, y)]]

    assert checks() == [True] * 3
    right = pb.hvp
    monkeypatch.setattr(pb, "hvp", lambda *a: pb.map_tree(lambda h: h * (1 + 1e-4), right(*a)))
    assert checks() == [False] * 3


def test_demo_notices_other_bits():
    zeros = pb.zeros(3), -pb.zeros(3)
    digests = [demo_command._digest(z) for z in zeros]
    assert not demo_command._equal("x", digests).passed
    assert demo_command._equal("x", digests[:1] * 3).passed


def test_demo_splits_the_digits_in_one_way():
    pytest.importorskip("sklearn")
    data, again = digits.load(), digits.load()
    assert len(data.y) == 1437 and len(data.test_y) == 360
    assert pb.all(data.test_x == again.test_x) and pb.all(data.y == again.y)


def test_demo_is_decided_by_its_seed():
    pytest.importorskip("sklearn")
    first, again, other = (
        digits.train(digits.load(), 3, pb.random.key(seed), "fit") for seed in (3, 3, 4)
    )
    assert first.losses == again.losses != other.losses


def test_demo_without_scikit_learn_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    ended = command("demo", "--out", tmp_path / "report.html")
    assert ended.status == 2
    assert "pip install scikit-learn" in ended.err


@pytest.mark.parametrize("kind", ["directory", "below a file"])
def test_demo_refuses_a_report_it_cannot_write(tmp_path, kind):
    (tmp_path / "file").touch()
    path = tmp_path if kind == "directory" else tmp_path / "file" / "report.html"
    ended = command("demo", "--out", path)
    assert ended.status == 2
    assert "can't write the report" in ended.err


def test_demo_interrupted_leaves_nothing_behind(tmp_path, monkeypatch):
    pytest.importorskip("sklearn")

    def interrupted(*_):
        raise KeyboardInterrupt

    before = native.get_threads()
    monkeypatch.setattr(digits, "loss", interrupted)
    ended = command("demo", "--out", tmp_path / "report.html")
    assert ended.status == 130
    assert "interrupted" in ended.err
    assert not list(tmp_path.iterdir())
    assert native.get_threads() == before


# -- other commands --------------------------------------------------------------------------------


def test_info_names_version_and_devices():
    ended = command("info")
    assert ended.status == 0
    assert f"pullback {pb.__version__}" in ended.out and "cpu" in ended.out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ((), "required"),
        (("fly",), "invalid choice"),
        (("demo", "--steps", "0"), "at least 1"),
        (("demo", "--steps", "many"), "invalid"),
        (("demo", "--seed", "1.5"), "invalid"),
        (("demo", "--speed"), "unrecognized"),
        (("info", "extra"), "unrecognized"),
    ],
)
def test_bad_arguments_are_refused(argv, message, capsys):
    with pytest.raises(SystemExit) as error:
        main(list(argv))
    assert error.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda p: p.stem)
def test_example_runs(path, capsys):
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out


# -- progress --------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_progress_on_a_terminal_redraws_one_line(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    stream = Terminal()
    with Progress(100, "fit", stream) as progress:
        for i in range(100):
            progress.advance(f"loss {i}")
    text = stream.getvalue()
    assert text.count("\n") == 1 and text.endswith("\n")
    last = text.split("\r")[-1]
    assert "━" in last and "100/100" in last and "loss 99" in last
    assert all(len(line.replace("\x1b[K", "").rstrip()) < 60 for line in text.split("\r"))


def test_progress_leaves_the_line_when_interrupted(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    with pytest.raises(KeyboardInterrupt), Progress(10, "fit", stream) as progress:
        progress.advance()
        raise KeyboardInterrupt
    assert "1/10" in stream.getvalue() and stream.getvalue().endswith("\n")


@pytest.mark.parametrize(("total", "lines"), [(1, 1), (3, 3), (4, 4), (1000, 4)])
def test_progress_in_a_file_is_a_few_lines(total, lines):
    stream = io.StringIO()
    with Progress(total, "fit", stream) as progress:
        for _ in range(total):
            progress.advance()
    assert len(stream.getvalue().splitlines()) == lines
    assert f"{total}/{total}" in stream.getvalue().splitlines()[-1]


# -- drawing ---------------------------------------------------------------------------------------


def decoded(address: str) -> np.ndarray:
    """The pixels of one of our PNG images."""
    data = base64.b64decode(address.partition(",")[2])
    width, height = struct.unpack(">II", data[16:24])
    start = data.index(b"IDAT") + 4
    (length,) = struct.unpack(">I", data[start - 8 : start - 4])
    rows = np.frombuffer(zlib.decompress(data[start : start + length]), np.uint8)
    return rows.reshape(height, 1 + 4 * width)[:, 1:].reshape(height, width, 4)


def test_images_keep_their_pixels():
    pixels = drawing.diverging(np.array([[-1.0, 0.0, 0.5], [1.0, 2.0, -0.1]]), 1.0)
    address = re.search(r'src="([^"]+)"', drawing.image(pixels, "an <image>"))
    assert address and np.array_equal(decoded(address[1]), pixels)
    assert tuple(pixels[0, 0]) == (*drawing.NEGATIVE, 255)
    assert pixels[0, 1, 3] == 0 and tuple(pixels[1, 1]) == (*drawing.POSITIVE, 255)


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize(
    "y", [[1.0], [2.0, 2.0], [0.0, 0.0], [1e-12, 1e9], [math.nan, 1.0, math.inf], [math.nan], []]
)
def test_curves_draw_whatever_can_be_drawn(y, log):
    text = drawing.curves([drawing.Series("a & b", range(len(y)), y)], "x < 1", "y", log_y=log)
    assert not Outline(text).open
    assert "nan" not in text and "inf" not in text.replace("finite", "")


def test_points_are_marks_without_a_line_between_them():
    series = [
        drawing.Series("line", [0, 1, 2], [0, 1, 4]),
        drawing.Series("seen", [0, 1, 2], [0, 1, 4], "b points"),
        drawing.Series("", [0, 1, 2], [0, 1, 4], "a faint"),
    ]
    text = drawing.curves(series, "x", "y")
    marks = re.findall(r'class="line b points" d="([^"]+)"', text)[-1]
    assert marks.count("M") == marks.count("h0") == 3 and "L" not in marks
    assert text.count("swatch") == 2  # what has no name is not in the legend


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [(0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]), (-3, 7, [-2, 0, 2, 4, 6]), (1, 600, [200, 400, 600])],
)
def test_ticks_are_round(low, high, ticks):
    assert drawing._linear_ticks(low, high) == ticks


def test_page_escapes_texts():
    page = Page("<a>", "b & c")
    page.verdict("<d>", passed=False)
    page.facts({"<e>": "<f>"})
    page.section("<g>", "<h>")
    page.table(("<i>",), [("<j>", "`<k>`", True)])
    text = page.html()
    assert not Outline(text).open
    assert not re.search(r"<[a-k]>", text.replace("<b>", ""))


def test_a_nan_is_not_below_any_bound():
    assert below("x", 0.5, 1.0).passed
    assert not below("x", math.nan, 1.0).passed
