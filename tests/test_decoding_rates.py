"""Acceptance rates by rank: counted as defined, measured once, kept, and read from a drafter that brings its own."""

import json

import numpy as np
import pytest

from bastion.decoding import decode
from bastion.decoding.rates import RANKS, find_or_make_rates, measure_rates, rates_by_rank
from bastion.drafters.dflash_drafter import read_acceptance_rates
from bastion.errors import UserError
from tests.synthetic_runs import make_prefill, make_run
from tests.tiny_pair import tiny_pair

PROMPTS = [[1, 4, 2, 0, 3], [2, 2, 1]]


@pytest.fixture(scope="module")
def pair():
    return tiny_pair(vocab=6, block=4)


def test_every_reached_position_counts_once():
    steps = make_run(12, seed=3)
    expected, reached = np.zeros(RANKS), 0
    for step in steps[1:]:
        for depth in range(1, len(step.accepted) + 1):
            if depth > len(step.trace.marginal_token_ids):
                continue
            token = step.token_ids[step.accepted[depth]] if depth < len(step.accepted) else step.bonus
            ids = step.trace.marginal_token_ids[depth - 1].tolist()
            reached += 1
            if token in ids:
                expected[ids.index(token)] += 1
    assert reached and rates_by_rank(steps) == pytest.approx(expected / reached)
    with pytest.raises(UserError, match="no acceptance rates"):
        rates_by_rank([make_prefill()])


def test_rates_are_measured_once_and_kept(pair, tmp_path, monkeypatch):
    monkeypatch.setenv("BASTION_HOME", str(tmp_path))
    monkeypatch.setattr("bastion.decoding.rates.PROMPTS", PROMPTS)
    monkeypatch.setattr("bastion.decoding.rates.measure_rates", lambda pair: measure_rates(pair, PROMPTS, 12))
    said = []
    rates = find_or_make_rates(pair, said.append)
    assert len(said) == 1 and 0 < sum(rates) <= 1 + 1e-9
    assert find_or_make_rates(pair, said.append) == rates and len(said) == 1
    file, = (tmp_path / "rates").iterdir()
    file.write_text("{")          # damaged: measured anew
    assert find_or_make_rates(pair, said.append) == rates and len(said) == 2
    steps = list(decode(pair, PROMPTS[0], "sequoia:3", max_new_tokens=9))
    assert {step.nodes for step in steps[1:]} == {4}


@pytest.mark.parametrize("rates", [[], [0.5, -0.1], [0.9, 0.9], "many", [None]])
def test_a_drafter_brings_its_own_rates_or_says_what_is_wrong(tmp_path, rates):
    assert read_acceptance_rates(tmp_path) is None
    file = tmp_path / "growth.json"
    file.write_text(json.dumps({"depth_temperatures": [1.0]}))
    assert read_acceptance_rates(tmp_path) is None
    file.write_text(json.dumps({"acceptance_rates": [0.5, 0.25]}))
    assert read_acceptance_rates(tmp_path) == (0.5, 0.25)
    file.write_text(json.dumps({"acceptance_rates": rates}))
    with pytest.raises(UserError, match="add up to 1"):
        read_acceptance_rates(tmp_path)
