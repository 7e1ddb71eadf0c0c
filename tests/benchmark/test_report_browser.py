"""The report in a real browser: it sorts, switches, fits a phone, and asks nobody for anything."""

import re
import shutil

import pytest

from xattr.benchmark.report import render

from .test_report import evil, report, section, tile

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FOCUSABLE = "a[href], button, select, input, summary, [tabindex='0']"


@pytest.fixture(scope="module")
def browser():
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("there is no Chromium")
    with api.sync_playwright() as playwright:
        try:
            chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        except api.Error as error:
            pytest.skip(f"Chromium does not start: {str(error).splitlines()[0]}")
        yield chromium
        chromium.close()


@pytest.fixture
def visit(browser, tmp_path):
    """Opens a report as a file; fails at the end if the page complained or asked for anything else."""
    contexts, said, asked = [], [], []

    def opened(what=None, **options):
        file = tmp_path / "report.html"
        file.write_text(render(what or report()), encoding="utf-8")
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(5000)
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("dialog", lambda dialog: (said.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(file.as_uri())
        return page

    yield opened
    for context in contexts:
        context.close()
    assert said == []
    assert {url.partition(",")[0].partition(";")[0] for url in asked if url.startswith("data:")} <= {
        "data:image/png", "data:image/jpeg", "data:"}  # fmt: skip
    assert [url for url in asked if not url.startswith(("data:", "file:"))] == []
    assert len({url.partition("#")[0] for url in asked if url.startswith("file:")}) == 1


def rows(page, part):
    return [head.get_attribute("data-v") for head in page.locator(f"{part} tbody tr > th").all()]


def test_the_leaderboard_sorts_best_first_and_then_turns(visit):
    page = visit()
    board, heads = "#s1-board", "#s1-board thead th"
    button = page.locator(heads).nth(2).get_by_role("button")
    assert rows(page, board) == ["GradSkip", "LRP", "GradCam", "RandomMap"]
    page.locator(heads).nth(1).get_by_role("button").click()  # insertion: higher is better
    assert rows(page, board) == ["LRP", "GradSkip", "GradCam", "RandomMap"]
    button.click()  # deletion: lower is better
    assert rows(page, board) == ["GradSkip", "LRP", "GradCam", "RandomMap"]
    assert page.locator(heads).nth(2).get_attribute("aria-sort") == "ascending"
    assert page.locator(f"{heads}[aria-sort='none']").count() == 4
    button.click()
    assert rows(page, board) == ["RandomMap", "GradCam", "LRP", "GradSkip"]
    assert page.locator(heads).nth(2).get_attribute("aria-sort") == "descending"
    page.locator(heads).nth(0).get_by_role("button").click()
    assert rows(page, board) == ["GradCam", "GradSkip", "LRP", "RandomMap"]
    # A cost that is unknown comes last, both ways.
    forwards = page.locator("#s1-cost thead th").nth(1).get_by_role("button")
    for first in ("GradCam", "GradSkip"):
        forwards.click()
        assert rows(page, "#s1-cost")[0] == first and rows(page, "#s1-cost")[-1] == "RandomMap"


def images(page):
    return page.locator("#s1-wall .tile h4").all_inner_texts()


def test_the_wall_sorts_by_disagreement_image_and_score(visit):
    page = visit()
    wall = page.locator("#s1-wall")
    sort, order, method, metric = (wall.locator(f"[data-pick={key}]") for key in ("sort", "order", "method", "metric"))
    named = lambda *numbers: [f"picture {i}" for i in numbers]
    assert images(page) == named(1, 2, 0, 3)
    order.select_option("up")
    assert images(page) == named(0, 2, 1, 3)  # the one without any stays last
    sort.select_option("image")
    assert images(page) == named(0, 1, 2, 3)
    assert not method.is_visible()
    sort.select_option("score")
    assert images(page) == named(3, 2, 1, 0)
    method.select_option("LRP")  # its scores fall from image to image
    assert images(page) == named(0, 1, 2, 3)
    assert wall.get_by_role("status").inner_text() == "4 images by insertion of LRP, largest first."
    score = wall.locator(".tile").nth(3).locator(".map").nth(1).locator(".score")
    assert score.inner_text() == "−0.750"
    metric.select_option("deletion")
    assert wall.get_by_role("status").inner_text() == "4 images by deletion of LRP, largest first."


def test_natural_order_of_names(visit):
    page = visit(report(section(tiles=tuple(tile(i, image=f"picture {10 - i}") for i in range(4)))))
    page.get_by_label("Sort by").select_option("image")
    assert images(page) == ["picture 7", "picture 8", "picture 9", "picture 10"]


def test_methods_opacity_size_and_backdrop_of_the_wall(visit):
    page = visit()
    wall = page.locator("#s1-wall")
    maps = wall.locator(".map[data-method='1']")
    assert maps.first.is_visible()
    wall.get_by_role("checkbox", name="LRP").uncheck()
    assert not any(one.is_visible() for one in maps.all())
    assert wall.locator(".map[data-method='0']").first.is_visible()
    style = lambda of, key: wall.locator(of).first.evaluate(f"e => getComputedStyle(e).{key}")
    assert style(".stack img", "opacity") == "0.7" and "grayscale" in style(".under", "filter")
    wall.get_by_label("Map over picture").fill("0")
    wall.get_by_label("Size").fill("192")
    wall.get_by_role("checkbox", name="grey picture").uncheck()
    assert (style(".stack img", "opacity"), style(".stack", "width")) == ("0", "192px")
    assert style(".under", "filter") == "none"


def test_curves_switch_by_their_names(visit):
    page = visit()
    part = page.locator("#s1-curves")
    key, lines = part.get_by_role("button", name="LRP"), part.locator(".chart .series[data-method='1']")
    assert lines.count() == 2
    key.click()
    assert key.get_attribute("aria-pressed") == "false" and not lines.first.is_visible()
    everything = part.get_by_role("button", name="Switch all")
    everything.click()
    assert key.get_attribute("aria-pressed") == "true" and lines.first.is_visible()
    everything.click()
    assert not part.locator(".chart .series").first.is_visible()


def test_cost_is_drawn_against_the_chosen_metric(visit):
    page = visit()
    part = page.locator("#s1-cost")
    shown = lambda: [one.get_attribute("aria-label") for one in part.locator("svg:visible").all()]
    assert [text.partition(";")[0] for text in shown()] == ["insertion against forwards for one explanation"]
    part.locator("[data-pick=metric]").select_option("gini")
    part.locator("[data-pick=cost]").select_option("seconds")
    assert [text.partition(";")[0] for text in shown()] == ["gini against seconds for one explanation"]


def test_the_theme_follows_the_system_until_it_is_chosen(visit):
    ground = lambda page: page.evaluate("getComputedStyle(document.body).backgroundColor")
    light, dark = "rgb(250, 250, 248)", "rgb(20, 22, 27)"
    page = visit(color_scheme="dark")
    assert ground(page) == dark
    page.get_by_label("Theme").select_option("light")
    assert ground(page) == light
    page.get_by_label("Theme").select_option("automatic")
    page.emulate_media(color_scheme="light")
    assert ground(page) == light
    page.get_by_label("Theme").select_option("dark")
    assert ground(page) == dark
    page.reload()  # nothing is remembered
    assert ground(page) == light and page.get_by_label("Theme").input_value() == ""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_stands_out_from_its_ground(visit, scheme):
    """Contrast of at least 4.5 to 1, from the colours that the browser computes."""
    found = visit(color_scheme=scheme).evaluate("""() => {
      const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
      const rgb = (colour) => {
        canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
        return [...canvas.getImageData(0, 0, 1, 1).data];
      };
      const light = (c) => {
        const [r, g, b] = c.map((v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
      };
      const low = [];
      for (const e of document.querySelectorAll("body *")) {
        if (![...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()) || !e.getClientRects().length) continue;
        if (e.closest(".vh, .skip, script, svg defs, .arrow")) continue;
        let ground = e;
        while (ground && rgb(getComputedStyle(ground).backgroundColor)[3] === 0) ground = ground.parentElement;
        const style = getComputedStyle(e);
        const [a, b] = [rgb(e.closest("svg") ? style.fill : style.color), rgb(getComputedStyle(ground).backgroundColor)]
          .map((c) => light(c.slice(0, 3)));
        const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        if (ratio < 4.5) low.push([e.tagName, e.className, e.textContent.slice(0, 30), ratio]);
      }
      return low;
    }""")
    assert found == []


@pytest.mark.parametrize("width", [320, 360, 1280])
def test_the_page_never_scrolls_sideways(visit, width):
    long = "AVeryLongNameOfAMethodWithoutAnyPlaceToBreak" * 3
    names = section(model=long.lower(), tiles=(tile(0, (long,), image=long.upper(), errors={"LRP": long.lower()}),))
    page = visit(
        report(section(), names, notes=(long.lower(),), command=long), viewport={"width": width, "height": 700}
    )
    wide = "[document.documentElement.scrollWidth, document.body.scrollWidth]"
    assert page.evaluate(wide) == [width, width]
    page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
    assert page.evaluate(wide) == [width, width]
    page.evaluate("window.scrollTo(500, 0)")
    assert page.evaluate("window.scrollX") == 0
    box = page.locator("#s1-board .scroll")
    if width < 1000:  # the table scrolls in its own box, the names stay
        assert box.evaluate("e => (e.scrollLeft = 200, e.scrollLeft)") > 100
        head = page.locator("#s1-board tbody th").first
        assert abs(head.bounding_box()["x"] - box.bounding_box()["x"]) < 3


def test_tab_reaches_every_control_and_shows_where_it_is(visit):
    page = visit(viewport={"width": 360, "height": 700})
    wanted = page.evaluate(
        """(selector) => [...document.querySelectorAll(selector)]
          .filter((e) => e.checkVisibility({ visibilityProperty: true }))
          .map((e, i) => (e.dataset.tab = i))""",
        FOCUSABLE,
    )
    assert len(wanted) > 40
    reached = []
    for _ in wanted:
        page.keyboard.press("Tab")
        place, seen = page.evaluate(
            """() => {
              const e = document.activeElement, style = getComputedStyle(e);
              const outline = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 1;
              return [Number(e.dataset.tab ?? -1), outline];
            }"""
        )
        assert seen, page.evaluate("document.activeElement.outerHTML.slice(0, 200)")
        reached.append(place)
    assert reached == wanted  # all of them, in the order of the page


def test_all_works_by_keyboard_alone(visit):
    page = visit()
    press = page.keyboard.press
    press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.locator("#s1-board thead button").nth(1).focus()
    press("Enter")
    assert rows(page, "#s1-board")[0] == "LRP"
    press("Space")
    assert rows(page, "#s1-board")[0] == "RandomMap"
    page.get_by_label("Sort by").focus()
    press("ArrowDown")
    assert images(page) == [f"picture {i}" for i in range(4)]
    page.get_by_label("Map over picture").focus()
    press("ArrowLeft")
    assert page.locator(".stack img").first.evaluate("e => getComputedStyle(e).opacity") == "0.65"
    box = page.locator("#s1-wall").get_by_role("checkbox", name=re.compile("Grad ?Cam"))
    box.focus()
    press("Space")
    assert not page.locator("#s1-wall .map[data-method='2']").first.is_visible()
    failed = page.locator("#s1-wall summary").first
    failed.focus()
    press("Enter")
    assert page.get_by_text("OverTime: 60 s").is_visible()
    key = page.locator("#s1-curves button.key").first
    key.focus()
    press("Space")
    assert key.get_attribute("aria-pressed") == "false"
    page.get_by_label("Theme").focus()
    press("End")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_without_scripts_everything_is_there_and_no_dead_control(visit):
    page = visit(java_script_enabled=False)
    assert images(page) == [f"picture {i}" for i in (1, 2, 0, 3)]
    assert page.locator("button:visible, select:visible, input:visible").count() == 0
    assert "insertion" in page.locator("#s1-board thead").inner_text()
    assert page.locator("#s1-curves .legend").inner_text().split("\n") == ["GradSkip", "LRP", "GradCam", "RandomMap"]


def test_on_paper_there_are_no_controls(visit):
    page = visit(color_scheme="dark")
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(26, 28, 32)"
    assert page.locator("button:visible, select:visible, input:visible").count() == 0
    assert "insertion" in page.locator("#s1-board thead").inner_text()
    assert "GradSkip" in page.locator("#s1-curves .legend").inner_text()


def test_names_that_are_attacks_are_shown_not_run(visit):
    page = visit(evil())
    assert page.locator("img[src='x']").count() == 0
    assert page.locator("h1").inner_text().startswith("</script><script>alert(1)")
    page.get_by_label("Sort by").first.select_option("score")
    assert page.locator("#s1-wall").get_by_role("status").inner_text().count("alert(1)") == 2


def test_names_of_controls_and_pictures_are_told(visit):
    page = visit()
    for selector in ("button", "select", "input", ".scroll", "img", "svg[role=img]", "[role=img]"):
        for one in page.locator(f"{selector}:visible").all():
            label = one.evaluate(
                "e => e.labels?.[0]?.textContent || e.getAttribute('aria-label') || e.alt || e.textContent || ''"
            )
            assert re.search(r"\w", label), one.evaluate("e => e.outerHTML.slice(0, 200)")
