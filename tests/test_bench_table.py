"""The table of a benchmark against hand-worked cases, numpy and exhaustive resampling; and its exports."""

import csv
import io
import itertools
import json
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bastion.analysis.benchmark import (
    FEWEST, MEAN, benchmark_table, bootstrap_speedups, cell_values, differences, first_difference, progress_by_cell,
)
from bastion.analysis.benchmark_published import FILE, Published, published, published_gap
from bastion.cli.bench import _print
from bastion.figures import numbers
from bastion.figures.benchmark_charts import speedup_figure, tau_figure
from bastion.figures.benchmark_html import progress_html, table_html
from bastion.figures.benchmark_tables import columns, csv_text, json_object, latex, markdown, paper_rows, where_words
from bastion.records.benchmark_rows import BenchmarkRow, Cell

NASTY = "<b>a|b_c</b> & 50%$"


def row(name, prompt, method, lengths, verify, turn=0, temperature=0.0, ids=None, nodes=None, **more):
    ids = tuple(range(1 + sum(lengths))) if ids is None else ids
    return BenchmarkRow(name, prompt, turn, temperature, method, ids=ids, lengths=tuple(lengths), nodes=tuple(nodes or [4] * len(lengths)),
                        surrogates=tuple([2.0] * len(lengths)), verify=verify, gaps=tuple([0.5] * len(ids)) if method == "ar" else (), **more)


def two_sets():
    return [
        row("s", "1", "ar", [1] * 6, 3.0, nodes=[1] * 6), row("s", "1", "bastion", [3, 3], 1.0),
        row("s", "2", "ar", [1] * 4, 2.0, nodes=[1] * 4), row("s", "2", "bastion", [2, 2], 2.0, nodes=[8, 4]),
        row("t", "1", "ar", [1, 1], 1.0, nodes=[1, 1]), row("t", "1", "bastion", [2], 0.25)]


def table(rows, **more):
    return {(c.temperature, c.method, c.prompt_set): c for c in benchmark_table(rows, ["s", "t"], ["ar", "bastion"], [0.0], **more)}


def test_a_cell_is_the_ratio_of_tokens_per_second_over_the_same_prompts():
    cells = table(two_sets())
    own = cells[0.0, "bastion", "s"]
    # 10 tokens in 3 s against 10 tokens in 5 s; 4 steps; nodes (4 + 4 + 8 + 4) / 4
    assert (own.prompts, own.tokens, own.steps, own.tau, own.tokens_per_second) == (2, 10, 4, 2.5, pytest.approx(10 / 3))
    assert own.speedup == pytest.approx(5 / 3) and own.nodes_mean == 5 and own.surrogate_mean == 2 and own.identical == 2
    plain = cells[0.0, "ar", "s"]
    assert (plain.tau, plain.tokens_per_second, plain.speedup, plain.low, plain.high) == (1, 2, 1, None, None)
    assert cells[0.0, "bastion", "t"].speedup == pytest.approx(4) and cells[0.0, "bastion", "t"].low is None


def test_the_mean_over_sets_is_the_plain_mean():
    mean = table(two_sets())[0.0, "bastion", MEAN]
    assert mean.speedup == pytest.approx((5 / 3 + 4) / 2) and mean.tau == pytest.approx((2.5 + 2) / 2)
    assert (mean.prompts, mean.identical, mean.tokens, mean.steps) == (3, 3, 12, 5)
    one = benchmark_table(two_sets(), ["s"], ["ar", "bastion"], [0.0])
    assert [c.prompt_set for c in one] == ["s", "s"]


def test_only_prompts_that_both_have_finished_count():
    rows = [*two_sets(), row("s", "3", "ar", [1] * 9, 0.1), row("t", "2", "bastion", [5], 0.1)]
    cells = table(rows)
    assert cells[0.0, "bastion", "s"].prompts == 2 and cells[0.0, "bastion", "s"].speedup == pytest.approx(5 / 3)
    assert cells[0.0, "ar", "s"].prompts == 3
    assert cells[0.0, "bastion", "t"].prompts == 1


def test_a_conversation_counts_once_all_its_turns_are_there():
    rows = [*two_sets(), row("s", "c", "ar", [1], 0.5), row("s", "c", "ar", [1, 1], 1.0, turn=1), row("s", "c", "bastion", [1], 0.5)]
    turns = {("s", "c"): 2}
    assert table(rows, turns=turns)[0.0, "bastion", "s"].prompts == 2
    both = [*rows, row("s", "c", "bastion", [2], 0.2, turn=1, ids=(0, 1, 9))]
    cell = table(both, turns=turns)[0.0, "bastion", "s"]
    assert cell.prompts == 3 and cell.tokens == 13 and cell.identical == 2   # its second turn differs


def test_prompts_that_did_not_fit_are_counted_apart():
    rows = [*two_sets(), BenchmarkRow("s", "x", 0, 0.0, "ar", skipped="too long"), BenchmarkRow("s", "x", 0, 0.0, "bastion", skipped="too long")]
    cell = table(rows)[0.0, "bastion", "s"]
    assert (cell.prompts, cell.skipped, cell.speedup) == (2, 1, pytest.approx(5 / 3))


def test_without_rows_nothing_is_made_up():
    for cell in table([]).values():
        values = cell_values(cell)
        assert {name for name, value in values.items() if value not in (0, 0.0)} == {
            "set", "method", "tau", "tokens_per_second", "speedup", "speedup_low", "speedup_high", "nodes_mean", "surrogate_mean"}
        assert values["speedup"] is None and values["tau"] is None


def test_above_temperature_0_nothing_is_held_against_plain_decoding():
    rows = [row("s", "1", "ar", [1, 1], 1.0, temperature=1.0), row("s", "1", "bastion", [2], 1.0, temperature=1.0, ids=(7, 8, 9))]
    cells = benchmark_table(rows, ["s"], ["ar", "bastion"], [1.0])
    assert [c.identical for c in cells] == [None, None] and differences(rows) == []


def test_a_difference_has_its_place_and_plain_decodings_gap():
    rows = [row("s", "1", "ar", [1, 1], 1.0, ids=(1, 2, 3)), row("s", "1", "bastion", [2], 1.0, ids=(1, 2, 4)), row("s", "1", "dflash", [3], 1.0, ids=(1, 2, 3, 4))]
    found = {one.method: (one.position, one.top2_gap) for one in differences(rows)}
    assert found == {"bastion": (2, 0.5), "dflash": (3, None)}


@given(st.lists(st.integers(0, 2), max_size=5), st.lists(st.integers(0, 2), max_size=5))
def test_the_first_difference_ends_the_common_beginning(left, right):
    place = first_difference(left, right)
    if place is None:
        assert left == right
    else:
        assert left[:place] == right[:place] and left[place:place + 1] != right[place:place + 1]


def test_the_bootstrap_has_the_distribution_of_all_resamples():
    """Three prompts have 27 equally likely resamples: the drawn speedups match their mean and quantiles."""
    sums = np.array([[10, 2.0, 10, 5.0], [4, 4.0, 4, 2.0], [6, 1.0, 6, 3.0]])
    every = []
    for draw in itertools.product(range(3), repeat=3):
        tokens, spent, plain, plain_spent = sums[list(draw)].sum(0)
        every.append(tokens / spent / (plain / plain_spent))
    drawn = bootstrap_speedups(sums, 40_000)
    assert set(np.round(drawn, 9)) <= set(np.round(every, 9))
    assert np.mean(drawn) == pytest.approx(np.mean(every), rel=0.01)
    for value in set(np.round(every, 9)):
        assert np.mean(np.isclose(drawn, value)) == pytest.approx(np.mean(np.isclose(every, value)), abs=0.01)
    assert np.array_equal(drawn, bootstrap_speedups(sums, 40_000))   # a table does not flicker
    assert len(bootstrap_speedups(sums[:1])) == 0


def test_an_interval_holds_the_speedup_and_narrows_with_prompts():
    rng = np.random.default_rng(1)

    def cell(prompts):
        rows = []
        for place in range(prompts):
            rows += [row("s", str(place), "ar", [1] * 6, float(rng.uniform(2, 4))), row("s", str(place), "bastion", [3, 3], float(rng.uniform(0.5, 2)))]
        return benchmark_table(rows, ["s"], ["ar", "bastion"], [0.0])[1]

    few, many = cell(FEWEST), cell(100)
    assert few.low <= few.speedup <= few.high and many.low <= many.speedup <= many.high
    assert many.high - many.low < few.high - few.low


def measured(prompts, name="s", seed=2):
    rng = np.random.default_rng(seed)
    return [row(name, str(place), method, lengths, float(rng.uniform(1, 3))) for place in range(prompts)
            for method, lengths in (("ar", [1] * 6), ("bastion", [3, 3]))]


@pytest.mark.parametrize(("prompts", "there"), [(1, False), (2, False), (FEWEST - 1, False), (FEWEST, True)])
def test_below_five_prompts_there_is_no_interval_anywhere(prompts, there, capsys):
    cells = benchmark_table(measured(prompts), ["s"], ["ar", "bastion"], [0.0])
    own = cells[1]
    assert own.prompts == prompts and own.speedup > 0 and (own.low is not None) == (own.high is not None) == there
    html, figure = table_html(cells), speedup_figure(cells)
    assert (f"<small>{numbers.NONE}</small>" in html) != there and (" to " in html.split("<tbody>")[1]) == there
    bars = figure.data[0].error_y
    assert (bars.array[0] > 0 and bars.arrayminus[0] > 0) == there
    assert ("no interval" in figure.data[0].customdata[0]) != there and f"of {FEWEST} prompts or more" in figure.layout.annotations[0].text
    _print(cells, [], "note")
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("bastion"))
    assert (f"  {numbers.NONE}  " in line) != there and (numbers.significant(own.low) + "-" in line) == there


def test_the_mean_has_an_interval_only_where_every_set_has_enough_prompts():
    def mean(few):
        rows = [*measured(few, "s"), *measured(9, "t", 3)]
        return table(rows)[0.0, "bastion", MEAN]

    assert mean(FEWEST - 1).low is None and mean(FEWEST).low < mean(FEWEST).speedup < mean(FEWEST).high


def test_progress_counts_decodes_of_each_set_and_method():
    expected = [Cell(s, p, 0, 0.0, m) for s in "st" for p in "12" for m in ("ar", "bastion")]
    assert progress_by_cell(two_sets(), expected) == {
        ("s", "ar"): (2, 2), ("s", "bastion"): (2, 2), ("t", "ar"): (1, 2), ("t", "bastion"): (1, 2)}


# --- published numbers ------------------------------------------------------------------------------------

def test_published_numbers_name_their_source_and_what_is_missing():
    assert published() and published_gap().endswith("not shown.")
    for one in published():
        assert one.source and one.target and one.device and (one.speedup or one.tau)
    assert {one.prompt_set for one in published()} == {MEAN}
    assert json.loads(FILE.read_text())["rows"][0]["speedup"] == 6.61


# --- exports ----------------------------------------------------------------------------------------------

BESIDE = [Published(MEAN, "bastion", 0.0, 6.61, None, "Qwen3-8B", "A100", "", "a paper")]
INFO = {"id": "x", "created": "2026-01-01", "pair": "p", "device": "d", "dtype": "float32", "attention": "bastion", "sessions": [], "sets": ["s"],
        "calibration": {"made_at": "2026-01-01T10:00:00+00:00"}, "request": {"limit": 4, "max_new_tokens": 16, "seed": 0}}


def cells():
    return benchmark_table(two_sets(), ["s", "t"], ["ar", "bastion"], [0.0])


def test_rows_are_laid_out_as_the_papers_speedup_and_tau_per_set_and_the_mean():
    assert columns(cells()) == ["s", "t", MEAN]
    own, beside = dict(paper_rows(cells(), BESIDE)), "bastion, published (Qwen3-8B, A100)"
    assert own["bastion"] == ["1.67x", "2.50", "4.00x", "2.00", "2.83x", "2.25"] and own["ar"] == ["1.00x", "1.00"] * 3
    assert own[beside] == [numbers.NONE] * 4 + ["6.61x", numbers.NONE]


def test_markdown_has_one_table_per_temperature_and_escapes():
    text = markdown(cells(), BESIDE, "A note_with*marks.")
    lines = text.splitlines()
    assert lines[0] == "**Temperature 0**" and lines[2] == "| method | s speedup | s tau | t speedup | t tau | mean speedup | mean tau |"
    assert "| bastion | 1.67x | 2.50 | 4.00x | 2.00 | 2.83x | 2.25 |" in lines and lines[-1] == r"A note\_with\*marks."
    assert all(line.count("|") == 8 for line in lines if line.startswith("|"))
    nasty = markdown(benchmark_table([row(NASTY, "1", "ar", [1], 1.0)], [NASTY], ["ar"], [0.0]))
    assert re.search(r"(?<!\\)[<>]", nasty) is None and all(len(re.findall(r"(?<!\\)\|", line)) == 4 for line in nasty.splitlines() if line.startswith("|"))


def test_latex_is_booktabs_with_every_special_character_escaped():
    text = latex(cells(), BESIDE, "50 % of a_b & c.")
    assert "\\toprule" in text and "\\bottomrule" in text and "\\begin{tabular}{lrrrrrr}" in text and "\\cmidrule(lr){2-3}" in text
    assert "bastion & 1.67$\\times$ & 2.50 & 4.00$\\times$ & 2.00 & 2.83$\\times$ & 2.25 \\\\" in text
    assert "50 \\% of a\\_b \\& c." in text and text.count("\\midrule") == 2
    body = latex(benchmark_table([row(NASTY + "~^#{}\\", "1", "ar", [1], 1.0)], [NASTY + "~^#{}\\"], ["ar"], [0.0]))
    line = next(line for line in body.splitlines() if "multicolumn" in line)
    assert r"\textless{}b\textgreater{}a\textbar{}b\_c" in line and r"50\%\$\textasciitilde{}\textasciicircum{}\#\{\}\textbackslash{}" in line


def test_csv_and_json_hold_full_precision_and_say_what_was_published():
    lines = list(csv.DictReader(io.StringIO(csv_text(cells(), BESIDE))))
    assert len(lines) == 7 and lines[-1]["source"].startswith("published: Qwen3-8B on A100") and lines[0]["source"] == "measured"
    mine = next(line for line in lines if (line["set"], line["method"]) == ("s", "bastion"))
    assert float(mine["speedup"]) == pytest.approx(5 / 3, rel=1e-12) and float(mine["tau"]) == 2.5 and mine["identical_to_ar"] == "2"
    value = json_object(cells(), differences(two_sets()), INFO, BESIDE)
    assert value["rows"] == [cell_values(cell) for cell in cells()] and value["published"][0]["speedup"] == 6.61
    assert value["calibration_made_at"] == "2026-01-01T10:00:00+00:00" and json.dumps(value, allow_nan=False)
    assert "at most 4 prompts a set" in where_words(INFO) and "seed 0" in where_words(INFO)


def test_tables_on_the_page_write_nothing_unescaped():
    bad = [row(NASTY, "1", "ar", [1], 1.0), row(NASTY, "1", NASTY, [1], 1.0)]
    for text in (table_html(benchmark_table(bad, [NASTY], ["ar", NASTY], [0.0])),
                 progress_html({(NASTY, NASTY): (1, 2)}, [NASTY], [NASTY])):
        assert "<b>a" not in text and "&lt;b&gt;a|b_c&lt;/b&gt; &amp; 50%$" in text
    assert "1 of 2" in progress_html({("s", "ar"): (1, 2)}, ["s"], ["ar"])
    whole = table_html(cells(), BESIDE)
    assert '<td data-set="s" data-field="speedup" class="sum">1.67x' in whole and "bastion, published" in whole and "6.61x" in whole


def test_of_many_sets_the_table_has_speedup_and_tau_and_the_rest_for_the_mean():
    names = ["a", "b", "c"]
    rows = [row(name, "1", method, [1, 1], 1.0) for name in names for method in ("ar", "bastion")]
    text = table_html(benchmark_table(rows, names, ["ar", "bastion"], [0.0]))
    assert text.count('data-set="a"') == 4 and text.count(f'data-set="{MEAN}"') == 10
    assert text.count('data-set="s"') == 0 and table_html(cells()).count('data-set="s"') == 10
    heads = re.findall(r'colspan="(\d)"', text)
    assert heads == ["2", "2", "2", "5"]


def test_charts_draw_ours_solid_with_intervals_and_published_hollow():
    figure = speedup_figure(cells(), BESIDE)
    ours, theirs = figure.data
    assert list(ours.x) == ["s", "t", MEAN] and list(ours.y) == pytest.approx([5 / 3, 4, 17 / 6])
    assert list(ours.error_y.array) == list(ours.error_y.arrayminus) == [0, 0, 0]   # too few prompts
    assert list(theirs.x) == [MEAN] and list(theirs.y) == [6.61] and theirs.marker.pattern.shape == "/" and "published" in theirs.name
    assert "Hatched: published" in figure.layout.annotations[0].text and "2.83x" in figure.layout.title.text
    assert figure.layout.yaxis.range[1] > 6.61
    assert list(tau_figure(cells()).data[0].y) == [2.5, 2, 2.25]
    nasty = speedup_figure(benchmark_table([row(NASTY, "1", "ar", [1], 1.0), row(NASTY, "1", "dflash", [1], 1.0)], [NASTY], ["ar", "dflash"], [0.0]))
    assert "<b>a" not in nasty.to_json().replace("\\u003c", "<") and speedup_figure([]).layout.title.text == "Speedup per prompt set"
