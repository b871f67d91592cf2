"""The acceptance rule's distribution of each token against the target's, by enumeration, by hand, and through a run on disk."""

import json
from collections import defaultdict
from functools import partial

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from bastion.analysis.faithfulness import lossy_rule, run_faithfulness
from bastion.decoding import decode, resolve_method
from bastion.decoding.faithfulness import faithfulness
from bastion.decoding.rules import ACCEPTANCE, fitting_rules
from bastion.decoding.sampling import Sampling
from bastion.figures.faithfulness import lossy_label, surprise_figure, variation_figure
from bastion.records import RunStore
from bastion.records.schema import LATER_COLUMNS
from bastion.trees import DraftTree
from tests.golden import golden
from tests.synthetic_runs import make_info, text_of
from tests.test_acceptance_rules import enumerated
from tests.tiny_pair import tiny_pair

GOLDEN = json.loads(golden("bastion_temperature.json").read_text())["toy_examples"]


def toy(example) -> tuple[DraftTree, torch.Tensor, Sampling]:
    made = example["tree"]
    tree = DraftTree(np.array(made["token_ids"]), np.array(made["parent_indices"]), np.array(made["depths"]), np.zeros(len(made["depths"])), "toy")
    return tree, torch.tensor(example["node_logits"], dtype=torch.float64), Sampling(example["temperature"])


def outcome(rule, tree, logits, sampling, draws):
    path, bonus = rule.chosen(tree, logits, sampling, draws)
    return tuple(path.tolist()), bonus


@pytest.mark.parametrize("example", GOLDEN, ids=lambda e: e["example"])
def test_the_first_token_is_off_by_what_the_published_code_is_off_by(example):
    tree, logits, sampling = toy(example)
    for name in ("walk", "reference-argmax"):
        rule = ACCEPTANCE[name]
        first = defaultdict(float)
        for (path, bonus), mass in enumerated(partial(outcome, rule, tree, logits, sampling)).items():
            emitted = [*tree.token_ids[list(path[1:])].tolist(), bonus]
            first[emitted[0]] += mass
            found = faithfulness(rule, tree, logits, sampling, np.array(path), emitted)
        dense = np.array([first.get(token, 0.0) for token in range(logits.shape[-1])])
        target = torch.softmax(logits[0] / sampling.temperature, -1).numpy()
        some = dense[dense > 0]
        assert found.variation[0] == pytest.approx(0.5 * np.abs(dense - target).sum(), abs=1e-12)
        assert found.rule_entropy[0] == pytest.approx(-(some * np.log(some)).sum(), abs=1e-9)
        assert found.target_entropy[0] == pytest.approx(-(target * np.log(target)).sum(), abs=1e-9)
        assert found.surprise[0] == pytest.approx(-np.log(target[emitted[0]]), abs=1e-9)
        assert found.variation[0] == pytest.approx(0.0 if name == "walk" else example["tv_first_token_official"], abs=1e-6)


def test_a_run_records_it_reads_it_back_and_an_older_one_without_it_opens(tmp_path):
    pair = tiny_pair(vocab=4, block=3)
    steps = {rule: list(decode(pair, [1, 0, 2], "ddtree:9", 1.0, max_new_tokens=12, acceptance=rule)) for rule in ("walk", "reference-argmax")}
    faithful, off = (run_faithfulness(steps[rule]) for rule in steps)
    assert faithful.variation.max() < 1e-12 and faithful.rule_entropy == pytest.approx(faithful.target_entropy)
    assert off.mean_variation[-1] > 0.01 and off.rule_entropy[-1] < off.target_entropy[-1] and off.tokens == faithful.tokens == 11
    assert off.mean_variation[-1] == pytest.approx(np.mean([v for s in steps["reference-argmax"][1:] for v in s.trace.faithfulness.variation]))
    assert run_faithfulness(list(decode(pair, [1, 0, 2], "ddtree:6", max_new_tokens=5))) is None
    assert run_faithfulness(list(decode(pair, [1, 0, 2], "dflash", 1.0, max_new_tokens=5, acceptance="block"))) is None

    store = RunStore(tmp_path)
    writer = store.create(make_info(sampling={"temperature": 1.0, "acceptance": "reference-argmax"}), text_of=text_of)
    for step in steps["reference-argmax"]:
        writer.append(step)
    writer.finish("length")
    run = store.open(writer.id)
    assert run_faithfulness(run.steps).surprise == pytest.approx(off.surprise) and lossy_rule(run.info) == "reference-argmax"
    path = tmp_path / writer.id / "steps.parquet"
    pq.write_table(pq.read_table(path).drop_columns(sorted(LATER_COLUMNS)), path)
    older = RunStore(tmp_path).open(writer.id)
    assert len(older.steps) == len(steps["reference-argmax"]) and run_faithfulness(older.steps) is None

    assert "off the target, on average" in variation_figure(off).layout.title.text
    assert variation_figure(faithful).layout.title.text == "The rule follows the target at every token"
    assert list(surprise_figure(off).data[0].y) == list(off.surprise)


def test_which_rules_fit_and_which_runs_are_marked():
    chosen = ("walk", "reference-argmax")
    assert [fitting_rules(resolve_method(name)) for name in ("ar", "ddtree:8", "bastion", "specinfer:2,1", "sequoia:8")] == [
        ("walk",), chosen, chosen, ("walk", "multi-round", "reference-argmax"), ("walk", "multi-round", "reference-argmax")]
    assert fitting_rules(resolve_method("dflash")) == tuple(ACCEPTANCE)
    assert {name for name, rule in ACCEPTANCE.items() if not rule.lossless} == {"reference-argmax"}
    warm = {"method": "bastion", "sampling": {"temperature": 1, "acceptance": "reference-argmax"}}
    assert lossy_label(warm) == "reference-argmax (not lossless)"
    assert lossy_label({**warm, "sampling": {"temperature": 0, "acceptance": "reference-argmax"}}) == ""
    assert lossy_label({"method": "bastion", "sampling": {"temperature": 1, "acceptance": ["x"]}}) == ""
