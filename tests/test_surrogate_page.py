"""The Surrogate page's logic without a browser: which runs, which steps, what it says when there is little to say."""

from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

import bastion.jobs.job_manager as manager_module
from bastion.analysis.surrogate_evidence import run_evidence
from bastion.analysis.surrogate_report import default_unit, surrogate_report
from bastion.jobs import JobManager
from bastion.records import RunStore
from pages.parts.surrogate_choice import NEWEST, candidates, run_labels, shortcuts

from tests.counting_engine import CountingEngine
from tests.synthetic_runs import decode, make_info, make_run, text_of

SCRIPT = str(Path(__file__).resolve().parents[1] / "app.py")


@pytest.fixture
def store(tmp_path, monkeypatch):
    jobs = JobManager(CountingEngine(), RunStore(tmp_path / "runs"))
    monkeypatch.setattr(manager_module, "_manager", jobs)
    monkeypatch.setattr("pages.parts.fetch.model_ready", lambda: True)
    yield jobs.store
    jobs.close()


def save(store, seed=0, steps=8, run_id=None, prompt=0, options=None, **info) -> str:
    writer = store.create(make_info(prompt_ids=[prompt, *range(11, 22)], **info), run_id, text_of, decode)
    for record in make_run(steps, seed, **{"depth": 4, **(options or {})}):
        writer.append(record)
    return writer.finish()


def page(**query) -> AppTest:
    test = AppTest.from_file(SCRIPT, default_timeout=300)
    for name, value in query.items():
        test.query_params[name.replace("_", "-")] = value
    test.switch_page("pages/surrogate.py")
    return test.run()


def metrics(test) -> dict[str, str]:
    return {metric.label: metric.value.replace("\u2009", " ") for metric in test.metric}


def address(test) -> str:
    """The ids in the address, as they stand there."""
    value = test.query_params["surrogate-runs"]
    return value if isinstance(value, str) else value[-1]


def words(test) -> str:
    return "\n".join(part.value for part in [*test.caption, *test.markdown, *test.info, *test.error]).replace("\\", "")


def test_the_empty_page_says_how_to_make_a_run(store):
    save(store, method="ar", options={"nodes": 1, "accepted_depth": 0})
    test = page()
    assert not test.exception and test.subheader[0].value == "No run with a draft tree yet"
    assert "python -m bastion generate --save" in words(test) and not test.metric


def test_the_numbers_are_those_of_the_saved_runs(store):
    ids = [save(store, seed, prompt=seed, method="ddtree:15", options={"priced": False}) for seed in range(6)]
    test = page()
    assert not test.exception, test.exception
    evidence = [run_evidence(store.open(run_id)) for run_id in ids]
    assert default_unit(evidence) == "prompt"
    report = surrogate_report(evidence, "prompt")
    found = metrics(test)
    assert found["Steps"] == str(len(report.frame)) and found["Pearson"] == f"{report.correlation.pearson.value:.2f}".replace("-", "\u2212")
    assert found["Spearman"] == f"{report.correlation.spearman.value:.2f}".replace("-", "\u2212")
    assert [s.value for s in test.subheader][0] == "Does the surrogate know what a step will give?"
    assert "Counterfactual" in words(test) and "Estimated by geometric continuation" in words(test)


def test_the_newest_runs_are_chosen_and_a_link_chooses_others(store):
    ids = [save(store, seed, steps=2, run_id=f"20260101-0000{seed:02d}-00000{seed % 10}") for seed in range(NEWEST + 3)]
    test = page()
    newest = test.multiselect(key="surrogate-picked").value
    assert not test.exception and len(newest) == NEWEST and address(test) == ",".join(newest)
    linked = page(surrogate_runs=f"{ids[1]},{ids[2]},20200101-000000-abcdef")
    assert linked.multiselect(key="surrogate-picked").value == ids[1:3] and metrics(linked)["Steps"] == "4"
    linked.selectbox(key="surrogate-take").set_value("all runs").run()
    assert not linked.exception and len(linked.multiselect(key="surrogate-picked").value) == NEWEST + 3
    linked.multiselect(key="surrogate-picked").set_value([ids[0]]).run()
    assert linked.query_params["surrogate-runs"] in (ids[0], [ids[0]]) and metrics(linked)["Steps"] == "2"
    store.delete(ids[0])
    linked.run()
    assert not linked.exception and "Choose at least one run" in words(linked) and address(linked) == ids[0]


def test_a_link_to_the_newest_runs_shows_them_when_there_are_newer_ones(store):
    ids = [save(store, seed, steps=2, run_id=f"20260101-0000{seed:02d}-00000{seed % 10}") for seed in range(3)]
    test = page()
    link = address(test)
    assert link == ",".join(reversed(ids))
    newer = save(store, 9, steps=2, run_id="20260202-000000-abcdef")
    test.run()  # the page that is open keeps what its address says
    assert address(test) == link and test.multiselect(key="surrogate-picked").value == ids[::-1]
    linked = page(surrogate_runs=link)
    assert not linked.exception and linked.multiselect(key="surrogate-picked").value == ids[::-1]
    assert metrics(linked) == metrics(test) and metrics(linked)["Steps"] == "6"
    assert page().multiselect(key="surrogate-picked").value == [newer, *ids[::-1]]

    # another page and back: the newest are what is newest then, and a choice is still chosen
    def away_and_back(test):
        test.switch_page("pages/terms.py")
        del test.query_params["surrogate-runs"]
        test.run()
        test.switch_page("pages/surrogate.py")
        return test.run()

    assert away_and_back(test).multiselect(key="surrogate-picked").value == [newer, *ids[::-1]]
    test.multiselect(key="surrogate-picked").set_value([ids[1]]).run()
    assert address(test) == ids[1] and address(away_and_back(test)) == ids[1]
    assert test.multiselect(key="surrogate-picked").value == [ids[1]]
    assert address(away_and_back(linked)) == link


def test_a_link_names_the_runs_that_are_not_here_any_more_and_keeps_them(store):
    good, gone, plainly = save(store, 1), save(store, 2), save(store, 3, method="ar")
    store.trash(gone)
    link = f"{good},{gone},{plainly}"
    test = page(surrogate_runs=link)
    assert not test.exception and metrics(test)["Steps"] == "8" and address(test) == link
    assert f"Not here any more: {gone}; a run that was deleted can be restored on the page Runs." in words(test)
    assert f"Nothing to judge in {plainly}" in words(test) and f"{good};" not in words(test)
    store.restore(gone)
    test.run()
    assert metrics(test)["Steps"] == "16" and "Not here any more" not in words(test) and address(test) == link


def test_a_link_of_unknown_runs_alone_says_so_and_stays(store):
    save(store, 1)
    link = ",".join(f"20200101-00000{n}-abcdef" for n in range(6)) + ",**<b>**"
    test = page(surrogate_runs=link)
    assert not test.exception and not test.metric and address(test) == link
    assert "Not here any more: 20200101-000000-abcdef, " in words(test) and "20200101-000003-abcdef and 3 more;" in words(test)
    for run in store.list():
        store.delete(run.id)
    test.run()
    assert not test.exception and "Not here any more" in words(test) and address(test) == link
    assert "No run with a draft tree yet" in [part.value for part in test.subheader]


def test_what_cannot_be_judged_is_named_in_one_line(store):
    good, bare = save(store, 1), save(store, 2, options={"trace": False})
    broken, short = save(store, 3), save(store, 4, steps=0)
    (store.root / broken / "steps.parquet").write_bytes(b"PAR1 no more")
    test = page()
    assert not test.exception
    line = next(c.value.replace("\\", "") for c in test.caption if c.value.startswith("Left out"))
    assert broken in line and f"{short}: no step after the prefill" in line and good not in line
    assert "count for the correlation only: 1." in words(test)
    only = page(surrogate_runs=bare)
    assert not only.exception and "None of these runs recorded" in words(only) and "at most one marginal" in words(only)


def test_a_run_that_cannot_be_worked_with_leaves_the_page_to_the_others(store, monkeypatch):
    import pages.parts.surrogate_data as data

    bad, endless = save(store, 1, run_id="20260101-000001-abcdef"), save(store, 2, run_id="20260101-000002-abcdef")
    good = save(store, 3, run_id="20260101-000003-abcdef")

    def evidence(run):
        if run.id == bad:
            raise OverflowError("Python int too large to convert to C long")
        one = run_evidence(run)
        if run.id == endless:
            one.surrogate[0] = float("nan")
        return one

    monkeypatch.setattr(data, "run_evidence", evidence)
    test = page()
    assert not test.exception and metrics(test)["Steps"] == "8"
    line = next(c.value.replace("\\", "") for c in test.caption if c.value.startswith("Left out"))
    assert f"{bad}: its records cannot be worked with (OverflowError)" in line and good not in line
    assert f"{endless}: a surrogate that is no finite number" in line


def test_the_repeats_of_a_race_count_once_and_the_page_says_how_many_were_left_out(store):
    for number in range(3):
        save(store, 1, run_id=f"20260101-00000{number}-abcdef", group={"kind": "race", "id": "r", "repeat": number})
    other = save(store, 2)
    test = page()
    assert not test.exception and metrics(test)["Steps"] == "16" and "Repeats left out: 2," in words(test)
    assert len(test.multiselect(key="surrogate-picked").value) == 4
    alone = page(surrogate_runs=other)
    assert not alone.exception and "Repeats left out" not in words(alone)
    test.button_group[1].set_value("run").run()
    assert not test.exception and "no interval: 2 runs" in words(test)


def test_filters_and_switches_narrow_the_steps(store):
    for seed in range(4):
        save(store, seed, prompt=seed, method=("bastion", "ddtree:15")[seed % 2], prompt_set=("gsm8k", "mbpp")[seed // 2])
    test = page()
    test.multiselect(key="surrogate-methods").set_value(["bastion"]).run()
    test.multiselect(key="surrogate-sets").set_value(["gsm8k"]).run()
    assert not test.exception and metrics(test)["Steps"] == "8"
    for key, values in (("surrogate-unit", ("run", "step", "prompt")), ("surrogate-outcome", ("walked",)),
                        ("surrogate-by", ("position", "run", "prompt_set", "temperature")), ("surrogate-reliability", ("rank",))):
        for value in values:
            next(g for g in test.button_group if g.key == key).set_value(value).run()
            assert not test.exception, (key, value)
    test.toggle(key="surrogate-cut").set_value(True).run()
    assert not test.exception


def test_text_of_a_run_cannot_draw_on_the_page(store):
    save(store, 1, method="<b>x</b>", title="**bold** <img src=x>", prompt_set="![i](http://x.invalid/i.png)")
    test = page()
    assert not test.exception
    shown = [part.value for part in [*test.markdown, *test.caption] if "<style>" not in part.value]
    assert not any("<img src" in value.replace("\\<", "") or "![i](" in value for value in shown)


def test_labels_are_told_apart_and_shortcuts_hold_every_group(store):
    save(store, 1, run_id="20260101-000001-abcdef", prompt_set="gsm8k", group={"kind": "race", "id": "race-1"})
    save(store, 2, run_id="20260101-000002-abcdef", prompt_set="gsm8k")
    save(store, 3, method="ar", run_id="20260101-000003-abcdef")
    runs = candidates(store.list())
    labels = run_labels(runs)
    assert len(runs) == 2 and len(set(labels.values())) == 2
    groups = shortcuts(runs)
    assert groups["race race-1"] == ["20260101-000001-abcdef"] and len(groups["prompt set gsm8k"]) == len(groups["all runs"]) == 2
