"""The report as text: what is in it, what must never be in it, and how large it is."""

import base64
import dataclasses
import hashlib
import io
import itertools
import json
import math
import re
import subprocess
import sys
import warnings
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image

from xattr.benchmark.report import Cell, Column, Curves, Entry, Layers, Report, Section, Tile, render
from xattr.benchmark.report.chart import Axis, Frame, Look
from xattr.benchmark.report.leaderboard import best_of, verdict
from xattr.benchmark.report.leaderboard import warnings as doubts
from xattr.benchmark.report.pictures import MAP, draw_map, picture_uri
from xattr.benchmark.report.text import count, decimals, duration, embedded, esc, memory, name, number
from xattr.visualization import colour

NAN = math.nan
METHODS = ("GradSkip", "LRP", "GradCam", "RandomMap")
COLUMNS = (
    Column("insertion", True, "score", "patches of 4 x 4"),
    Column("deletion", False, "score"),
    Column("gini", None, "index, 0 to 1"),
)
EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&"


def entry(method, insertion, deletion, **changes):
    cells = {
        "insertion": Cell(insertion, insertion - 0.1, insertion + 0.1, 3, 0, None if method == "GradSkip" else True),
        "deletion": Cell(deletion, deletion - 0.1, deletion + 0.1, 3, 0, None if method == "GradSkip" else False),
        "gini": Cell(0.5, 0.4, 0.6, 2, 1, None if method == "GradSkip" else True),
    }
    costs = {"seconds": 0.004, "forwards": 2.0, "flops": 6e8, "peak_bytes": 1.2e7}
    return Entry(method, method == "RandomMap", **{"cells": cells, **costs, **changes})


def tile(i, methods=METHODS, **changes):
    random = np.random.RandomState(i)
    scores = {m: {c.name: float(i * (-1) ** k) / 4 for c in COLUMNS} for k, m in enumerate(methods)}
    found = {
        "image": f"picture {i}",
        "label": "class 3",
        "explained": "class 8",
        "picture": random.randint(0, 255, (24, 24, 3)).astype(np.uint8),
        "maps": {m: random.randn(6, 6) if k % 2 else random.rand(24, 24) for k, m in enumerate(methods)},
        "scores": scores,
        "disagreement": (0.2, 0.9, 0.5, NAN)[i % 4],
    }
    return Tile(**{**found, **changes})


def section(**changes):
    fractions = [0.0, 0.5, 1.0]
    lines = {m: ([1.0, 0.5 - k / 10, 0.1], [0.9, 0.4 - k / 10, 0.0], [1.1, 0.6, 0.2]) for k, m in enumerate(METHODS)}
    found = {
        "model": "vit_tiny",
        "data": "scenes",
        "images": 3,
        "reference": "GradSkip",
        "columns": COLUMNS,
        "entries": (
            entry("GradSkip", 0.8, 0.2),
            entry("LRP", 0.9, 0.3),
            entry("GradCam", 0.5, 0.4, forwards=1.0, errors=1),
            entry("RandomMap", 0.1, 0.9, forwards=NAN),
        ),
        "curves": (Curves("deletion", fractions, lines), Curves("insertion", fractions, lines)),
        "tiles": (
            tile(0),
            tile(1),
            tile(2, maps={"GradSkip": np.ones((2, 2))}, errors={"LRP": "OverTime: 60 s"}),
            tile(3),
        ),
        "layers": (
            Layers("GradSkip", "share of the attention branch", "gate", np.array([0.5, NAN]), ["block 1", "block 2"]),
            Layers("GradSkip", "weight of each head", "head weights", np.array([[1.0, 0.5], [0.0, NAN]]), ["a", "b"]),
            Layers("Laya", "attention to each layer", "attention", np.array([0.5, -0.25]), ["a", "b"]),
        ),
        "agreement": (("insertion", "deletion"), [[1.0, -0.5], [-0.5, 1.0]], 0.25),
    }
    return Section(**{**found, **changes})


def report(*sections, **changes):
    found = {
        "title": "Which explainer?",
        "sections": sections or (section(),),
        "provenance": {"versions": "xattr 0.1", "threads": "1"},
        "command": "xattr-explain benchmark plan.toml",
        "notes": ("GradCam failed once.",),
        "overview": (("GradSkip", 1.5, False), ("LRP", 1.5, False), ("GradCam", 3.0, False), ("RandomMap", 4.0, True)),
    }
    return Report(**{**found, **changes})


class Page(HTMLParser):
    """What a browser would see: elements with their attributes, and text."""

    VOID = ("meta", "link", "img", "input", "br", "wbr", "use", "path", "circle")

    def __init__(self, text):
        super().__init__()
        self.elements, self.open, self.texts = [], [], []
        self.feed(text)
        assert not self.open, self.open

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not self.open or self.open[-1] not in ("script", "style"):
            self.texts.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())

    def of(self, tag, **wanted):
        return [a for t, a in self.elements if t == tag and all(a.get(k.rstrip("_")) == v for k, v in wanted.items())]


@pytest.fixture(scope="module")
def page():
    return render(report())


def test_the_page_is_well_formed_and_says_everything(page):
    found = Page(page)
    for word in ("Which explainer?", "vit_ tiny", "Grad Cam", "OverTime: 60 s", "patches of 4 x 4", "block 2",
                 "plan.toml", "xattr 0.1", "GradCam failed once."):  # fmt: skip
        assert word in found.text, word
    ids = [a["id"] for _, a in found.elements if "id" in a]
    assert len(ids) == len(set(ids))
    for link in found.of("a"):
        assert link["href"].removeprefix("#") in ids
    for use in found.of("use"):
        assert use["href"].removeprefix("#") in ids
    assert all(a.get("alt") for a in found.of("img"))
    levels = [int(t[1]) for t, _ in found.elements if re.fullmatch("h[1-6]", t)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(below - above <= 1 for above, below in itertools.pairwise(levels))


def test_no_address_of_anywhere_else_is_in_the_page(page):
    found = Page(page)
    for tag, attributes in found.elements:
        for key in ("src", "href", "action", "poster", "srcset", "data", "xlink:href"):
            assert attributes.get(key, "#").startswith(("#", "data:")), (tag, attributes)
        assert not [key for key in attributes if key.startswith("on")], (tag, attributes)
    assert not re.search(r"//[a-z]|@import|https?:", re.sub(r"base64,[\w+/=]+|(?m:^\s*// .*$)", "", page))
    assert set(re.findall(r"url\(([a-z]+:)", page)) == {"data:"}


def test_the_policy_allows_this_script_and_nothing_else(page):
    policy = Page(page).of("meta", **{"http-equiv": "Content-Security-Policy"})[0]["content"]
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy and policy.startswith("default-src 'none'")


def evil():
    column = Column(EVIL, True, EVIL, EVIL)
    cells = {EVIL: Cell(0.5, 0.4, 0.6, 3)}
    lines = {EVIL: ([1.0, 0.0], [1.0, 0.0], [1.0, 0.0])}
    here = Section(
        EVIL, EVIL, 3, EVIL, (column,), (Entry(EVIL, False, cells, 1, 1.0, 1.0, 1.0, 1.0),),
        (Curves(EVIL, [0.0, 1.0], lines),),
        (
            tile(0, (EVIL,), image=EVIL, label=EVIL, explained=EVIL, scores={EVIL: {EVIL: 1.0}}),
            tile(1, (), errors={EVIL: EVIL}),
        ),
        (Layers(EVIL, EVIL, EVIL, np.array([1.0]), [EVIL]), Layers(EVIL, EVIL, EVIL, np.ones((1, 2)), [EVIL])),
        ((EVIL, EVIL), [[1.0, 1.0], [1.0, 1.0]], 1.0),
    )  # fmt: skip
    return Report(EVIL, (here, here), {EVIL: EVIL}, EVIL, (EVIL,), ((EVIL, 1.0, True),))


def test_what_comes_from_outside_stays_text():
    text = render(evil())
    found = Page(text)
    assert not [a for a in found.of("img") if a.get("src") == "x"]
    assert len(found.of("script")) == 3  # one a wall, and the page's own
    assert "alert(1)" in found.text and "<script>alert" not in text
    (first, _) = re.findall(r'<script type="application/json">(.*?)</script>', text, re.DOTALL)
    assert json.loads(first)["names"] == [EVIL, "picture 1"]


@pytest.mark.parametrize("odd", ["\ud800 half", "a\x00b\x1b[31m", "‮right to left", "$title ${script} $$", "%s {0}"])
def test_odd_text_does_no_harm(odd):
    text = render(report(title=odd, notes=(odd,)))
    text.encode("utf-8")
    assert "\x00" not in text and "\x1b" not in text
    if "$" in odd:
        assert text.count("$title ${script} $$") == 3


def test_json_in_a_script_cannot_end_it():
    value = {"a": ["</script><!--", NAN, math.inf, 1 / 3], "b": None}
    text = embedded(value)
    assert "<" not in text and json.loads(text) == {"a": ["</script><!--", None, None, 0.3333], "b": None}


def test_24_images_of_12_methods_stay_below_3_mb():
    random = np.random.RandomState(0)
    names = [f"Method{i}" for i in range(12)]
    columns = tuple(Column(f"metric_{i}", True, "score") for i in range(6))
    cells = {c.name: Cell(random.rand(), 0.0, 1.0, 24) for c in columns}
    entries = tuple(Entry(m, False, cells, 0, 0.1, i + 1.0, 1e9, 1e9) for i, m in enumerate(names))
    # Noise in picture and maps: nothing compresses worse.
    tiles = tuple(
        Tile(str(i), "", "", random.randint(0, 255, (224, 224, 3)).astype(np.uint8),
             {m: random.randn(224, 224) for m in names}, {m: {c.name: 0.5 for c in columns} for m in names})
        for i in range(24)
    )  # fmt: skip
    size = len(render(report(Section("m", "d", 24, names[0], columns, entries, (), tiles))).encode())
    assert 1e6 < size < 3e6


def test_the_same_data_gives_the_same_text(page):
    assert render(report()) == page


def test_missing_values_are_dashes_and_sort_last():
    cells = {"insertion": Cell(NAN, NAN, NAN, 0, 3, False), "gini": Cell(0.5, NAN, NAN, 1, 2, False)}
    bare = Entry("LRP", False, cells)
    text = render(report(section(entries=(entry("GradSkip", 0.8, 0.2), bare), curves=(), tiles=(), layers=())))
    assert "undefined on 3 images" in text and "not measured" in text and "nan" not in Page(text).text.lower()
    assert text.count('<td data-v="">') == 2 + 4  # two metrics, four costs
    assert "1 image<" in text


def test_everything_missing_still_is_a_page():
    empty = Section("m", "d", 0, "GradSkip", (), ())
    for one in (
        Report("t", ()),
        Report("t", (empty,)),
        report(section(entries=(), columns=COLUMNS, curves=(), tiles=())),
    ):
        Page(render(one))
    lines = {"LRP": ([NAN, 1.0, NAN], [NAN] * 3, [NAN] * 3), "GradCam": ([NAN] * 3, [NAN] * 3, [NAN] * 3)}
    text = render(report(section(curves=(Curves("deletion", [0.0, 0.5, 1.0], lines),))))
    Page(text)
    assert not re.search(r'(?:d|x|y|cx)="[^"]*(?:nan|inf)', text)
    infinite = {"insertion": Cell(math.inf, -math.inf, math.inf, 3)}
    text = render(report(section(entries=(Entry("GradSkip", False, infinite, 0, math.inf, 0.0, -1.0),))))
    assert not re.search(r'(?:\bd|x|y|cx)="[^"]*(?:nan|inf)', text)


def test_a_single_method_and_no_images():
    one = section(entries=(entry("GradSkip", 0.8, 0.2),), curves=(), tiles=(), layers=(), agreement=None)
    text = render(report(one, overview=(("GradSkip", 1.0, False),), notes=()))
    found = Page(text)
    assert "<h3" in text and not found.of("div", class_="wall") and not found.of("ol", class_="tiles")
    assert "left:0.0%" in text and "1 method, 1 model, 1 data set, 3 metrics." in found.text
    assert "Best mean of 2 metrics with a direction: <strong>Grad<wbr>Skip</strong> in 2." in text


def test_failures_are_counted_told_and_escaped(page):
    assert "⚠ 1</span>" in page and "1 method failed on some image" in page
    text = render(report(section(tiles=(tile(0, maps={}, errors={"LRP": "<b>boom</b>"}),))))
    assert "&lt;b&gt;boom&lt;/b&gt;" in text and "<b>boom" not in text


def test_best_and_different_follow_the_direction():
    here = section()
    assert [best_of(here, column) for column in COLUMNS] == [{"LRP"}, {"GradSkip"}, set()]
    text = render(report(here))
    board = text[text.index('<section id="s1-board"') : text.index('<section id="s1-curves"')]
    rows = [row.split("<td") for row in re.findall(r"<tr.*?</tr>", board, re.DOTALL)[1:]]
    assert "better than the reference" in rows[1][1] and "worse than the reference" in rows[2][1]
    assert "the reference" not in rows[0][1] and "the reference" not in rows[1][2]  # not different: no mark
    assert "differs from" in rows[1][3] and "★" in rows[1][1] and "★" not in rows[1][2]
    assert [("control" in row[0], "reference" in row[0]) for row in rows] == [
        (False, True), (False, False), (False, False), (True, False)]  # fmt: skip
    # The difference on shared images decides, not that of the means.
    cells = {"insertion": Cell(0.9, 0.8, 1.0, 2, 1, True, difference=-0.2)}
    text = render(report(section(entries=(entry("GradSkip", 0.8, 0.2), Entry("LRP", False, cells)))))
    assert "> worse than" in text and "> better than" not in text


def test_ties_are_all_best_and_a_control_that_wins_is_told():
    here = section(entries=(entry("GradSkip", 0.8, 0.2), entry("LRP", 0.8, 0.3), entry("RandomMap", 0.1, 0.1)))
    assert best_of(here, COLUMNS[0]) == {"GradSkip", "LRP"}
    assert verdict(here).endswith("<strong>Random<wbr>Map</strong> in 1, ties counted for each.")
    assert doubts(here)[0].endswith("has the best mean of deletion (Random<wbr>Map).")
    assert doubts(section()) == ["1 method failed on some image."] and "ties" not in verdict(section())


def test_images_stand_by_disagreement_even_without_scripts(page):
    order = [int(i) for i in re.findall(r'class="tile" data-index="(\d)"', page)]
    assert order == [1, 2, 0, 3]
    data = json.loads(re.search(r'<script type="application/json">(.*?)</script>', page)[1])
    assert data["disagreement"] == [0.2, 0.9, 0.5, None]
    assert data["scores"][1] == [[0.25] * 3, [-0.25] * 3, [0.25] * 3, [-0.25] * 3]


def decoded(uri):
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))).convert("RGB"))


def test_maps_have_the_colours_of_the_package():
    heat = np.array([[-1.0, -0.5, 0.0], [0.25, 0.5, 1.0]])
    drawn = draw_map(heat)
    np.testing.assert_allclose(decoded(drawn.uri) / 255, colour(heat)[..., :3], atol=0.04)
    np.testing.assert_array_equal(decoded(drawn.uri)[0, 2], np.round(colour(heat)[0, 2, :3] * 255))  # zero is neutral
    assert drawn.sign == "signed" and drawn.crisp and drawn.said == "values from -1 to 1"
    assert draw_map(np.abs(heat)).sign == "≥ 0"


@pytest.mark.parametrize("scale", [1e-300, 1e-30, 1e30, 1e300])
def test_a_map_and_a_multiple_of_it_look_the_same(scale):
    heat = np.random.RandomState(0).randn(9, 9)
    assert draw_map(heat * scale).uri == draw_map(heat).uri


def test_maps_of_nothing_and_of_no_numbers_are_drawn_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nothing, broken = draw_map(np.zeros((4, 4))), draw_map(np.array([[NAN, 1.0], [math.inf, -1.0]]))
        void = draw_map(np.full((2, 2), NAN))
    assert len(np.unique(decoded(nothing.uri).reshape(-1, 3), axis=0)) == 1
    green = (64, 204, 107)  # as everywhere in the package, also for infinite values
    assert (np.abs(decoded(broken.uri)[:, 0].astype(int) - green) <= 1).all()
    assert "2 of 4 not a number" in broken.said and void.said.startswith("no values")
    assert (nothing.sign, broken.sign, void.sign) == ("all 0", "signed", "no numbers")


def test_large_maps_are_averaged_not_sampled():
    heat = np.zeros((160, 320))
    heat[::4, ::4] = 1.0  # every square of 4 x 4 has the same mean
    pixels = decoded(draw_map(heat).uri)
    assert pixels.shape == (40, MAP, 3)
    np.testing.assert_array_equal(pixels, np.broadcast_to(decoded(draw_map(np.ones((1, 1))).uri), pixels.shape))


@pytest.mark.parametrize("shape", [(24, 24), (24, 24, 1), (24, 24, 3), (300, 200, 3), (500, 3)])
def test_pictures_keep_their_shape(shape):
    picture = np.random.RandomState(0).randint(0, 255, shape).astype(np.uint8)
    uri, crisp = picture_uri(picture)
    height, width = decoded(uri).shape[:2]
    assert crisp == (max(shape[:2]) <= 64) and max(height, width) <= 192
    if crisp:
        np.testing.assert_array_equal(decoded(uri)[..., 0], picture.reshape(24, 24, -1)[..., 0])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: tile(0, picture=np.zeros((4, 4, 3))), "picture 0: found float64"),
        (lambda: tile(0, picture=np.zeros((3, 4, 4), np.uint8)), "expected bytes"),
        (lambda: tile(0, maps={"LRP": np.zeros((1, 4, 4))}), r"map of LRP, picture 0: found \[1, 4, 4\]"),
        (lambda: Curves("deletion", [0.0, 1.0], {"LRP": ([1.0], [1.0, 1.0], [1.0, 1.0])}), "deletion of LRP"),
        (lambda: Layers("LRP", "t", "gate", np.ones(3), ["a"]), r"found \[3\] for 1 layers"),
    ],
)
def test_data_that_do_not_fit_are_an_error(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_numbers_for_the_eye():
    assert [number(v, 2) for v in (-0.001, 0.5, -1.25, NAN)] == ["0.00", "0.50", "−1.25", "–"]
    assert number(math.inf, 2) == "inf" and number(-1e-9) == "−1e-09"
    assert [decimals([v]) for v in (0.61, 5.3, 120.0, 1e7, 0.0, NAN)] == [3, 2, 0, None, 2, 2]
    assert [duration(v) for v in (12.34, 0.0042, 0.9999, 3e-6, NAN)] == ["12.3 s", "4.2 ms", "1.00 s", "3 µs", "–"]
    assert [count(v) for v in (6.2e8, 3.22e10, 12.0, NAN)] == ["620 M", "32.2 G", "12", "–"]
    assert [memory(v) for v in (1.2e7, 2**31, 100.0, NAN)] == ["11.4 MiB", "2.00 GiB", "100 B", "–"]
    assert name("insertion_deletion<x>") == "insertion_<wbr>deletion&lt;x&gt;" and name("GradCam") == "Grad<wbr>Cam"
    assert esc("'\"") == "&#x27;&quot;"


def test_axes_hold_their_values():
    for values in ([0.0, 1.0], [0.5, 0.5], [-3.0, 1e6], [0.0], [], [NAN], [1e-9, 2e-9]):
        axis = Axis.linear(values)
        finite = [v for v in values if math.isfinite(v)]
        assert all(0 <= axis.share(v) <= 1 for v in finite) and 2 <= len(axis.ticks) <= 12
        assert len({text for _, text in axis.ticks}) == len(axis.ticks)
    for values in ([1.0], [2.0, 104.0], [1e-5, 1e9], [3.0, 4.0]):
        axis = Axis.logarithmic(values)
        assert all(0 < axis.share(v) < 1 for v in values) and 1 <= len(axis.ticks) <= 12, axis
    frame = Frame(Axis.linear([0.0, 1.0]), Axis.linear([0.0, 1.0]))
    assert frame.path([0.0, 0.5, 1.0], [0.0, NAN, 1.0]).count("M") == 2


def test_ten_methods_differ_without_colour():
    marks = {(Look(i, False).dash, Look(i, False).mark(0, 0)) for i in range(40)}
    assert len(marks) == 40


def test_a_method_looks_the_same_in_every_section():
    first, second = section(), section(data="others", entries=section().entries[1:], tiles=(), layers=())
    text = render(report(first, second))
    keys = re.findall(r'data-method="(\d)">(?=<svg[^>]*>).*?</svg><span>([\w<>]+?)</span>', text)
    assert {n for n, method in keys if method == "LRP"} == {"1"}


def test_the_report_needs_no_table_library_and_no_canvas():
    code = "import sys, xattr.benchmark.report; print({'pandas', 'pyarrow', 'ray', 'matplotlib'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"


def test_data_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        section().model = "other"
