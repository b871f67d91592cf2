"""Numbers in a run.json that no page could work with are refused when it is read, wherever in it they stand."""

import io
import json
import zipfile

import pytest

from bastion.errors import UserError
from bastion.records import RunStore
from bastion.records.checks import MAX_TOKEN_ID
from bastion.records.run_json import MAX_DRAFTER_DEPTH, MAX_INTEGER

from tests.synthetic_runs import make_info, make_run, text_of

PLACES = [
    lambda value: {"totals": {"tau": value}},
    lambda value: {"totals": {"tokens": value}},
    lambda value: {"yardstick": {"tokens_per_second": value}},
    lambda value: {"sampling": {"temperature": value}},
    lambda value: {"sampling": {"seed": value}},
    lambda value: {"drafter_depth": value},
    lambda value: {"calibration": {"max_probed_nodes": value, "probes": [[1, value, 0.1]]}},
    lambda value: {"tree": {"max_nodes": value, "min_nodes": value}},
    lambda value: {"group": {"kind": "race", "id": "a", "repeat": value}},
    lambda value: {"prompt_ids": [3, value]},
    lambda value: {"something later": [[value]]},
]


@pytest.fixture
def store(tmp_path):
    store = RunStore(tmp_path)
    writer = store.create(make_info(), run_id="one", text_of=text_of)
    for record in make_run(2):
        writer.append(record)
    writer.finish()
    return store


def change(store, changes, number=None):
    """Put `changes` into run.json; the text 'NUMBER' in it becomes `number` as it stands."""
    path = store.root / "one" / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}).replace('"NUMBER"', number or ""))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("number", [str(10**30), str(-(10**30)), "1" + 5000 * "0", str(MAX_INTEGER + 1), "1e400", "-1e400"])
def test_a_number_that_fits_nothing_is_refused_wherever_it_stands(store, place, number):
    change(store, place("NUMBER"), number)
    with pytest.raises(UserError, match="a number that is out of range"):
        store.open("one")
    assert store.list() == [] and "out of range" in store.scan()[1][0].reason


def test_an_archive_with_such_a_number_is_refused_and_nothing_is_left(store, tmp_path):
    archive = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(store.export_zip("one"))) as source, zipfile.ZipFile(archive, "w") as target:
        for name in source.namelist():
            raw = source.read(name)
            if name.endswith("run.json"):
                raw = json.dumps({**json.loads(raw), "prompt_ids": [10**30]}).encode()
            target.writestr(name, raw)
    archive.seek(0)
    other = RunStore(tmp_path / "other")
    with pytest.raises(UserError, match="out of range"):
        other.import_zip(archive)
    assert other.list() == []


@pytest.mark.parametrize(("key", "value"), [("prompt_ids", [MAX_TOKEN_ID + 1]), ("prompt_ids", [-1]), ("prompt_ids", [True]),
                                            ("drafter_depth", MAX_DRAFTER_DEPTH + 1), ("drafter_depth", -1)])
def test_ids_and_depths_have_their_own_bounds(store, key, value):
    change(store, {key: value})
    with pytest.raises(UserError, match=f"'{key}' is missing or of the wrong kind"):
        store.open("one")


@pytest.mark.parametrize("changes", [{"prompt_ids": [0, MAX_TOKEN_ID]}, {"drafter_depth": MAX_DRAFTER_DEPTH}, {"drafter_depth": None},
                                     {"sampling": {"seed": MAX_INTEGER}}, {"totals": {"tau": 1e308}}, {"other": -MAX_INTEGER - 1}])
def test_the_greatest_that_fits_is_read(store, changes):
    change(store, changes)
    assert {name: store.open("one").info[name] for name in changes} == changes
