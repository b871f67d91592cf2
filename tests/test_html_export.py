"""A run as one HTML file: whole, closed to the network by its own policy, and blind to what its texts try."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import pytest

from bastion.figures.html_export import run_html
from bastion.figures.tree_payload import step_payload
from bastion.records import RunStore
from tests.synthetic_runs import decode, make_info, make_run, text_of

NASTY = ("</script><script>alert(1)</script>", "<!-- --!> <![CDATA[", '" onload="alert(1)', "\u202eabc\u202c \x00\x1b[31m",
         "</title></head><body onload=alert(1)>", "\ud800 \u2028", "🐑👩\u200d👧 שלום")


class Parts(HTMLParser):
    """Elements with their attributes, and the text inside those of one kind."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict]] = []
        self.texts: dict[str, list[str]] = {}
        self.open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self.open.append(tag)
        self.texts.setdefault(tag, []).append("")

    def handle_endtag(self, tag):
        while self.open and self.open.pop() != tag:
            pass

    def handle_data(self, data):
        if self.open:
            self.texts[self.open[-1]][-1] += data


def saved(tmp_path, steps=6, **info):
    store = RunStore(tmp_path)
    writer = store.create(make_info(drafter_depth=7, **info), run_id="shared", text_of=text_of, decode=decode)
    for record in make_run(steps, seed=4):
        writer.append(record)
    writer.finish("stop")
    return store.open("shared")


def data_of(page: str) -> dict:
    return json.loads(re.search(r'<script type="application/json" id="run">(.*?)</script>', page, re.S)[1])


def test_the_file_holds_every_step_as_the_component_takes_it(tmp_path):
    run = saved(tmp_path)
    data = data_of(run_html(run, 3))
    assert data["run"] == "shared" and data["select"] == 3 and data["live"] is False and data["start"] == 0
    assert data["steps"] == [step_payload(s, run.text_of, 7, p) for s, p in zip(run.steps, run.pieces)]
    assert "".join(word for step in data["steps"] for word in step["words"]) == "".join(p for texts in run.pieces for p in texts)


def test_the_policy_names_the_hash_of_each_script_and_style_and_nothing_else(tmp_path):
    page = run_html(saved(tmp_path))
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)[1]
    rules = dict(part.strip().split(" ", 1) for part in policy.split(";"))

    def hashes(pattern):
        return {f"'sha256-{base64.b64encode(hashlib.sha256(found.encode()).digest()).decode()}'"
                for found in re.findall(pattern, page, re.S)}

    assert rules["default-src"] == "'none'" and "unsafe" not in policy and "http" not in policy
    assert set(rules["script-src"].split()) == hashes(r'<script type="module">(.*?)</script>')
    assert set(rules["style-src"].split()) == hashes(r"<style>(.*?)</style>")
    parts = Parts(page)
    assert [tag for tag, _ in parts.elements].count("script") == 2
    for tag, attributes in parts.elements:
        assert not attributes.keys() & {"src", "href", "action", "onload", "onerror", "style", "srcset", "data"}, (tag, attributes)
    assert "@import" not in page and "url(" not in page.split('id="run"')[0] and "eval(" not in page
    assert page.index("Content-Security-Policy") < page.index("<style") < page.index("<script")


@pytest.mark.parametrize("nasty", NASTY)
def test_texts_from_elsewhere_stay_texts(tmp_path, nasty):
    run = saved(tmp_path, title=nasty, prompt=nasty, pair=nasty, method=nasty, device=nasty, dtype=nasty)
    run.info["text"] = nasty
    run.info["vocabulary"].update({token: nasty for token in list(run.vocabulary)[:40]})
    run.pieces[1][0] = nasty
    page = run_html(run)
    plain = Parts(run_html(saved(tmp_path / "plain")))
    assert [tag for tag, _ in Parts(page).elements] == [tag for tag, _ in plain.elements]
    page.encode("utf-8")
    assert not set("\u202e\u202c\x00\x1b\u2028") & set(page), "nothing hides or reorders, not even in the source"
    assert data_of(page)["method"] == nasty


def test_the_header_says_how_the_run_was_made(tmp_path):
    run = saved(tmp_path, title="Sheep & co", prompt="How many\nsheep?", device="NVIDIA H200", dtype="bfloat16", method="ddtree:16",
                yardstick={"tokens_per_second": 10.0})
    parts = Parts(run_html(run))
    totals = run.info["totals"]
    assert parts.texts["title"] == ["Sheep & co"] and parts.texts["h1"] == ["Sheep & co"]
    assert {"NVIDIA H200", "bfloat16", "method ddtree:16", "temperature 0", "tiny"} <= set(parts.texts["bdi"])
    assert "How many\nsheep?" in parts.texts["p"]
    numbers = dict(zip(parts.texts["dt"], [text.replace("\xa0", " ").replace("\u2009", "") for text in parts.texts["dd"]]))
    assert numbers["tokens"] == str(totals["tokens"]) and numbers["steps"] == "6" and float(numbers["tau"]) == pytest.approx(totals["tau"], rel=5e-3)
    assert float(numbers["speed, measured"].split()[0]) == pytest.approx(totals["tokens_per_second"], rel=5e-3)
    assert float(numbers["speedup, measured"][:-1]) == pytest.approx(totals["tokens_per_second"] / 10, rel=5e-3)
    assert data_of(run_html(run))["yardstick"] == {"tokens_per_second": 10.0, "measured": True}


@pytest.mark.parametrize("prompt, shown", [
    (None, None), ("  ", None), (7, None), ([], None), ([3, {"role": "user", "content": "Hi"}, {"role": "assistant"}], "user: Hi\n\nassistant: "),
])
def test_prompts_of_other_kinds(tmp_path, prompt, shown):
    texts = Parts(run_html(saved(tmp_path, prompt=prompt, sampling={"temperature": "warm"}))).texts
    assert ("Prompt" in texts.get("h2", [])) == (shown is not None) and (shown is None or shown in texts["p"])


def test_a_run_without_numbers_or_steps_is_a_page_too(tmp_path):
    store = RunStore(tmp_path)
    writer = store.create(make_info(), run_id="cut", text_of=text_of)
    writer.append(make_run(0)[0])
    writer.close()
    run = store.open("cut")
    run.info["totals"] = {}
    assert "cut short" in run_html(run) and len(data_of(run_html(run))["steps"]) == 1
    run.steps.clear(), run.pieces.clear()
    assert data_of(run_html(run))["steps"] == []


def test_forty_eight_steps_stay_under_half_a_megabyte(tmp_path):
    page = run_html(saved(tmp_path, steps=48))
    assert len(page.encode()) < 500_000
