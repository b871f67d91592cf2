"""Runs end to end: runs of the real default pair, found, named, deleted, brought back, carried away and opened."""

import pytest

from bastion.records import RunStore
from tests.browser import Screen, StudioServer, studio_home
from tests.recorded import record

PROMPT = "A farmer has 17 sheep and buys 5 more. How many sheep are there now?"


@pytest.fixture(scope="module")
def server(default_model, default_pair, tmp_path_factory):
    """A server with two runs of the default pair."""
    home = studio_home(tmp_path_factory.mktemp("studio"), default_model)
    for tokens in (24, 12):
        record(RunStore(home / "runs"), default_pair, PROMPT, "ddtree:16", tokens)
    studio = StudioServer(home)
    yield studio
    studio.kill()


@pytest.fixture
def screen(browser, server):
    opened = Screen(browser, server, width=1900)   # wide enough for every column: those out of sight are not in the page
    opened.page.goto(f"{server.url}/runs")
    opened.page.get_by_role("heading", name="Runs", exact=True).wait_for()
    opened.until(lambda: len(rows(opened)) == 2 and all(row["tokens"] and "note" in row for row in rows(opened)))
    yield opened
    assert opened.page.get_by_test_id("stException").count() == 0
    opened.context.close()


def store(screen) -> RunStore:
    return RunStore(screen.server.runs())


def rows(screen) -> list[dict[str, str]]:
    """The table as a screen reader hears it, numbers at full precision: name of the column -> text."""
    if not screen.page.get_by_test_id("stDataFrame").count():
        return []
    return screen.page.evaluate("""() => {
      const text = (cells) => [...cells].map((cell) => cell.textContent);
      const canvas = document.querySelector("[data-testid=stDataFrame] canvas");
      const names = text(canvas.querySelectorAll("[role=columnheader]"));
      return [...canvas.querySelectorAll("tbody [role=row], [role=row]")].filter((row) => row.querySelector("[role=gridcell]")).map((row) =>
        Object.fromEntries(text(row.querySelectorAll("[role=gridcell]")).map((cell, i) => [names[i], cell])));
    }""")


def select(screen, *places: int) -> None:
    actions = screen.page.locator(".st-key-runs-actions")
    for count, place in enumerate(places, start=1):
        screen.settle()
        box = screen.page.get_by_test_id("stDataFrame").bounding_box()
        screen.page.mouse.click(box["x"] + 16, box["y"] + 38 + 35 * place + 17)
        screen.until(lambda count=count: f"{count} of " in actions.inner_text())


def caption(screen) -> str:
    return screen.page.get_by_test_id("stMain").get_by_test_id("stCaptionContainer").first.inner_text().replace("\u2009", " ")


def test_the_table_says_what_the_records_say(screen):
    runs = [store(screen).open(summary.id) for summary in store(screen).list()]
    shown = rows(screen)
    for row, run in zip(shown, runs):
        steps = [step for step in run.steps if step.kind == "decode"]
        emitted = sum(len(step.emitted) for step in steps)
        seconds = sum(step.seconds.total for step in steps)
        size = sum(file.stat().st_size for file in (screen.server.runs() / run.id).iterdir())
        assert row["title"] == PROMPT and row["method"] == "ddtree:16" and row["pair"] == "smollm2-135m" and row["temp."] == "0"
        assert row["tokens"] == str(len(run.output_ids)) and row["ended"] == {"length": "at the limit", "stop": "model ended"}[run.info["finish_reason"]]
        assert float(row["tau"]) == pytest.approx(emitted / len(steps), rel=1e-9)
        assert float(row["tokens/s"]) == pytest.approx(emitted / seconds, rel=1e-9)
        assert float(row["size, MB"]) == pytest.approx(size / 1e6, rel=1e-9)
    whole = sum(file.stat().st_size for run in runs for file in (screen.server.runs() / run.id).iterdir())
    number, unit = caption(screen).removeprefix("2 saved runs, ").split()[:2]
    assert float(number) * {"kB": 1e3, "MB": 1e6}[unit] == pytest.approx(whole, rel=5e-3)


def test_search_and_filters_stay_in_the_address_and_over_pages(screen):
    longer = max(store(screen).list(), key=lambda run: run.tokens)
    store(screen).note(longer.id, "the longer one")
    screen.write(screen.page.get_by_role("textbox", name="Search"), "LONGER")
    screen.until(lambda: [row["tokens"] for row in rows(screen)] == [str(longer.tokens)] and screen.query() == {"runs-search": "LONGER"})
    screen.page.get_by_test_id("stSidebarNav").get_by_role("link", name="Terms").click()
    screen.page.get_by_role("heading", name="Terms").wait_for()
    screen.page.get_by_test_id("stSidebarNav").get_by_role("link", name="Runs").click()
    screen.until(lambda: len(rows(screen)) == 1 and screen.page.get_by_role("textbox", name="Search").input_value() == "LONGER")
    other = Screen(screen.context.browser, screen.server, width=1900)
    other.page.goto(screen.page.url)
    other.until(lambda: len(rows(other)) == 1)
    other.context.close()
    store(screen).note(longer.id, "")


def test_a_run_is_named_deleted_and_brought_back(screen):
    first = store(screen).list()[0]
    select(screen, 0)
    screen.page.get_by_role("button", name="Title and note").click()
    screen.page.get_by_label("Title", exact=True).fill("<b>Sheep</b> & [co](x)")
    screen.page.get_by_label("Note", exact=True).fill("kept")
    screen.page.get_by_role("button", name="Save").click()
    screen.until(lambda: rows(screen)[0]["title"] == "<b>Sheep</b> & [co](x)" and rows(screen)[0]["note"] == "kept")
    assert store(screen).open(first.id).info["title"] == "<b>Sheep</b> & [co](x)"
    screen.page.keyboard.press("Escape")
    screen.press("Delete")
    screen.until(lambda: "1 run is deleted." in screen.page.get_by_test_id("stMain").inner_text() and len(rows(screen)) == 1)
    assert [one.id for one in store(screen).trashed()] == [first.id]
    screen.press("Undo")
    screen.until(lambda: len(rows(screen)) == 2 and "is deleted" not in screen.page.get_by_test_id("stMain").inner_text())
    assert store(screen).trashed() == []
    store(screen).rename(first.id, PROMPT)


def test_runs_are_carried_away_and_taken_in(screen, tmp_path):
    select(screen, 0, 1)
    with screen.page.expect_download() as download:
        screen.press("Export")
    other = RunStore(tmp_path / "other")
    assert set(other.import_zips(download.value.path())) == {summary.id for summary in store(screen).list()}
    one = store(screen).list()[0].id
    saved = tmp_path / "one.zip"
    store(screen).export_zip(one, saved)
    (tmp_path / "broken.zip").write_bytes(saved.read_bytes()[:2000])
    store(screen).delete(one)
    screen.page.get_by_text("Import runs").first.click()
    screen.page.locator("input[type=file]").last.set_input_files([saved, tmp_path / "broken.zip"])
    main = screen.page.get_by_test_id("stMain")
    screen.until(lambda: "1 run was added." in main.inner_text() and "broken.zip: The file is not a whole zip archive" in main.inner_text())
    assert store(screen).open(one).output_ids == other.open(one).output_ids and len(store(screen).list()) == 2


def test_the_html_file_steps_like_explore(screen, tmp_path):
    run = store(screen).open(store(screen).list()[0].id)
    select(screen, 0)
    with screen.page.expect_download() as download:
        screen.press("Export as HTML")
    file = tmp_path / "run.html"
    download.value.save_as(file)
    page = screen.context.new_page()
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{file.as_uri()}#step=2")
    page.locator(".bs[data-step='2']").wait_for()
    assert page.get_by_test_id("text-token").count() == len(run.output_ids)
    assert page.get_by_test_id("stopping-title").inner_text().replace("\u2009", " ").startswith(f"Stopped at {run.steps[2].nodes} nodes")
    assert [url for url in asked if not url.startswith("file:")] == []
    page.close()


def test_selected_runs_go_to_the_other_pages(screen):
    ids = [summary.id for summary in store(screen).list()]
    select(screen, 1)
    screen.press("Open in Explore")
    screen.until(lambda: screen.run_id() == ids[1] and screen.page.locator("[data-testid=tree-node]").count() >= 2)
    last = store(screen).open(ids[1]).steps[-1].index
    screen.part("step-strip").focus()
    screen.page.keyboard.press("End")
    screen.until(lambda: screen.query().get("step") == str(last))
    with screen.page.expect_download() as download:
        screen.page.get_by_test_id("stSidebar").get_by_role("button", name="Export as HTML").click()
    assert f'"select":{last},' in download.value.path().read_text(encoding="utf-8"), "the file opens where the page was"
    main = screen.page.get_by_test_id("stMain")
    select_on_runs(screen, 0, 1)
    screen.press("Surrogate")
    screen.page.get_by_role("heading", name="Surrogate", exact=True, level=1).wait_for()
    screen.until(lambda: all(run_id[-6:] in main.inner_text() for run_id in ids))
    select_on_runs(screen, 0, 1)
    screen.press("Compare")
    screen.until(lambda: "/compare?" in screen.page.url and all(f"race-runs={run_id}" in screen.page.url for run_id in ids))
    screen.page.get_by_role("heading", name="Compare", exact=True, level=1).wait_for()


def select_on_runs(screen, *places: int) -> None:
    screen.page.goto(f"{screen.server.url}/runs")
    screen.until(lambda: len(rows(screen)) == 2 and all(row["tokens"] for row in rows(screen)))
    select(screen, *places)
