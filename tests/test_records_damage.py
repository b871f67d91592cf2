"""Whatever is wrong with a run's tables, opening it says so in one sentence and nothing else."""

import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bastion.errors import UserError
from bastion.records import RunStore
from bastion.records.schema import LATER_COLUMNS, TABLES
from tests.synthetic_runs import make_info, make_run, text_of


@pytest.fixture
def store(tmp_path):
    store = RunStore(tmp_path)
    writer = store.create(make_info(), run_id="one", text_of=text_of)
    for record in make_run(3, seed=6, nodes=5, choices=3, beyond=3):
        writer.append(record)
    writer.finish()
    return store


def change(store, table, edit):
    path = store.root / "one" / f"{table}.parquet"
    pq.write_table(edit(pq.read_table(path)), path)


def set_cell(column, row, value):
    """An edit that puts one value into a table."""
    def edit(table):
        at = table.column_names.index(column)
        values = table.column(column).to_pylist()
        values[row] = value
        return table.set_column(at, table.field(at), pa.array(values, table.field(at).type))
    return edit


@pytest.mark.parametrize("table", TABLES)
def test_missing_empty_cut_and_foreign_tables(store, table):
    path = store.root / "one" / f"{table}.parquet"
    raw = path.read_bytes()
    for content in (b"", raw[:20], raw[:len(raw) // 2], raw[:-1], b"PAR1" + bytes(50) + b"PAR1"):
        path.write_bytes(content)
        with pytest.raises(UserError, match="damaged or cut short"):
            store.open("one")
    path.unlink()
    with pytest.raises(UserError, match="missing"):
        store.open("one")


@pytest.mark.parametrize("table, column", [(name, column) for name, schema in TABLES.items()
                                           for column in schema.names if column not in LATER_COLUMNS])
def test_every_column_is_needed(store, table, column):
    change(store, table, lambda rows: rows.drop_columns([column]))
    with pytest.raises(UserError, match=f"lacks the column '{column}'"):
        store.open("one")


def test_columns_of_a_later_minor_version_are_passed_over(store):
    change(store, "nodes", lambda rows: rows.append_column("extra", pa.nulls(rows.num_rows)))
    assert len(store.open("one").steps) == 4


@pytest.mark.parametrize("table, edit, match", [
    ("nodes", set_cell("parent", 3, 4), "precede"),
    ("nodes", set_cell("parent", 3, -1), "precede"),
    ("nodes", set_cell("parent", 0, 0), "not a root"),
    ("nodes", set_cell("depth", 2, 9), "depth"),
    ("nodes", set_cell("token_id", 2, -5), "out of range"),
    ("nodes", set_cell("node", 2, 1), "nodes are not all there"),
    ("nodes", set_cell("step", 0, 99), "out of step order"),
    ("nodes", set_cell("target_log_prob", 1, None), "without the target's"),
    ("nodes", set_cell("target_top_ids", 1, [1, 2]), "other lengths"),
    ("nodes", set_cell("target_top_ids", 1, None), "gaps"),
    ("nodes", set_cell("target_top_ids", 1, [1, 2, None, 3, 4]), "gaps"),
    ("nodes", lambda rows: rows.slice(0, rows.num_rows - 1), "nodes are not all there"),
    ("growth", set_cell("parent", 0, 1), "popped after"),
    ("growth", set_cell("pop", 0, 2), "growth log is not all there"),
    ("growth", lambda rows: rows.slice(1), "growth log is not all there"),
    ("marginals", set_cell("rank", 0, 1), "marginals are not all there"),
    ("marginals", lambda rows: rows.slice(3), "marginals are not all there"),
    ("steps", set_cell("accepted", 1, [0, 99]), "does not exist"),
    ("steps", set_cell("accepted", 1, []), "does not start at the root"),
    ("steps", set_cell("accepted", 1, [0, 0]), "no path"),
    ("steps", set_cell("emitted", 1, [None]), "gaps"),
    ("steps", set_cell("emitted", 0, [-1]), "out of range"),
    ("steps", set_cell("emitted", 1, [96]), "emitted is not"),
    ("steps", set_cell("pieces", 0, ["a", "b"]), "piece of text"),
    ("steps", set_cell("pieces", 0, [None]), "piece of text"),
    ("steps", set_cell("kind", 0, "warmup"), "kind"),
    ("steps", set_cell("marginal_depth", 1, -7), "marginals are not all there"),
    ("steps", set_cell("growth_rows", 1, -1), "growth log is not all there"),
    ("steps", set_cell("target_choices", 1, 10**12), "other lengths"),
    ("steps", lambda rows: rows.slice(1), "numbered"),
    ("steps", lambda rows: rows.slice(0, 2), "out of step order"),
    ("steps", lambda rows: rows.set_column(0, "step", rows["step"].cast(pa.int32())), "int32"),
    ("steps", lambda rows: rows.set_column(
        6, pa.field("nodes", pa.int64()), pa.nulls(rows.num_rows, pa.int64())), "gaps"),
])
def test_tables_at_odds_with_themselves(store, table, edit, match):
    change(store, table, edit)
    with pytest.raises(UserError, match=match):
        store.open("one")


def test_any_single_damaged_byte_is_noticed_or_harmless(store):
    """Flip bytes all over each table: the steps come back unchanged, or a UserError does."""
    whole = store.open("one")
    rng = np.random.default_rng(0)
    noticed = 0
    for table in TABLES:
        path = store.root / "one" / f"{table}.parquet"
        raw = path.read_bytes()
        for position in rng.integers(0, len(raw), 40):
            broken = bytearray(raw)
            broken[position] ^= int(rng.integers(1, 256))
            path.write_bytes(broken)
            try:
                run = store.open("one")
            except UserError:
                noticed += 1
            else:
                assert run.output_ids == whole.output_ids and len(run.steps) == 4
        path.write_bytes(raw)
    assert noticed > 80


def test_a_folder_under_another_runs_name(store):
    shutil.copytree(store.root / "one", store.root / "two")
    with pytest.raises(UserError, match="holds another run"):
        store.open("two")


def test_a_newer_schema_is_refused(store):
    path = store.root / "one" / "run.json"
    path.write_text(path.read_text().replace('"schema_version": 1', '"schema_version": 9'))
    with pytest.raises(UserError, match="newer version"):
        store.open("one")
    assert store.list() == []
