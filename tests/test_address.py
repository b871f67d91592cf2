"""Numbers in the address that no field can hold: the page shows its default, whatever was typed."""

import re
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

import bastion.jobs.job_manager as manager_module
from bastion.jobs import JobManager
from bastion.records import RunStore

from tests.counting_engine import CountingEngine

ROOT = Path(__file__).resolve().parents[1]
PAGES = {"race": "compare", "bench": "benchmark"}
FIELDS = sorted({name for path in (ROOT / "pages").rglob("*.py")
                 for call in re.findall(r"number_input\((?:[^()]|\([^()]*\))*", path.read_text())
                 for name in re.findall(r'key="([\w-]+)", bind=', call)})


@pytest.fixture
def jobs(tmp_path, monkeypatch):
    monkeypatch.setenv("BASTION_HOME", str(tmp_path))
    made = JobManager(CountingEngine(), RunStore())
    monkeypatch.setattr(manager_module, "_manager", made)
    monkeypatch.setattr("pages.parts.fetch.model_ready", lambda: True)
    yield made
    made.close()


def app(page: str, **query) -> AppTest:
    test = AppTest.from_file(str(ROOT / "app.py"), default_timeout=300)
    test.run()
    for name, value in query.items():
        test.query_params[name] = value
    test.switch_page(f"pages/{page}.py")
    return test.run()


def test_every_bound_number_is_known_here():
    assert len(FIELDS) == 7 and {name.partition("-")[0] for name in FIELDS} == set(PAGES)


@pytest.mark.parametrize("value", ["1e400", "-1e400", "inf", "nan", "1e300", "9" * 40, "-7", "words", ""])
@pytest.mark.parametrize("page", PAGES.values())
def test_a_number_that_no_field_can_hold_leaves_the_default(jobs, page, value):
    fields = [name for name in FIELDS if PAGES[name.partition("-")[0]] == page]
    plain = app(page)
    usual = {name: plain.number_input(key=name).value for name in fields}
    test = app(page, **dict.fromkeys(fields, value))
    shown = {name: test.number_input(key=name).value for name in fields}
    if value == "":
        usual = {name: shown[name] if shown[name] is None else number for name, number in usual.items()}   # a field may be cleared
    assert not test.exception and shown == usual
    test.run()
    assert not test.exception
    assert not any("inf" in str(test.query_params.get(name)) or "1e400" in str(test.query_params.get(name)) for name in fields)


def test_after_an_infinity_the_field_is_bound(jobs):
    test = app("compare", **{"race-seed": "1e400"})
    assert test.number_input(key="race-seed").proto.query_param_key == "race-seed" and "race-seed" not in test.query_params
    test.number_input(key="race-seed").set_value(5).run()
    field = test.number_input(key="race-seed")
    assert not test.exception and field.value == 5 and field.proto.query_param_key == "race-seed"
