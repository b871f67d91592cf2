"""Decoding with an EAGLE-3 head: what is emitted, what the records hold, which methods go with it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import bastion.drafters.eagle3_drafter as drafter_module
from bastion.decoding import Eagle3, decode, resolve_method
from bastion.decoding.calibrate import profile_steps
from bastion.drafters.eagle3 import Eagle3Model
from bastion.errors import UserError
from bastion.models.cache import KVCache
from bastion.records import RunStore, run_to_json
from bastion.records.checks import check_step
from tests.test_decoding_distribution import SAMPLINGS, emitted_distribution, plain_distribution, total_variation
from tests.test_decoding_loop import PROMPT, emitted, greedy
from tests.tiny_eagle3 import tiny_eagle3_pair
from tests.tiny_pair import tiny_pair

TREES = [Eagle3(1), Eagle3(6), Eagle3(30), Eagle3(9, levels=3, top_k=2), Eagle3(9, levels=1, top_k=4), Eagle3(500)]
HEADS = [{}, {"drafted": 4}, {"windows": (3,)}, {"windows": (None, 2)}]


def path_log_prob(pair, context: list[int], path: list[int]) -> float:
    """The head's own log-prob of `path` behind `context` and a root, its last token: one chain, computed afresh.

    The window is left to a mask written here, over a copy of the head that has none.
    """
    drafter, target = pair.drafter, pair.target
    config = drafter.model.config
    model = Eagle3Model(replace(config, windows=(None,) * config.num_hidden_layers)).to(target.dtype)
    model.load_state_dict(drafter.model.state_dict())
    features = target.prefill(context[:-1], target.new_cache(len(context))).features
    rows, total = len(context) - 1, 0.0
    (window,) = [window or 1000 for window in config.windows]
    cache = KVCache(1, 64)
    near = torch.arange(rows)[:, None] - torch.arange(rows)
    hidden = model(model.fuse(features), drafter.embed(torch.tensor(context[1:])), torch.arange(rows), cache, (near >= 0) & (near < window))
    cache.commit(rows)
    hidden = hidden[:, -1:]
    for depth, token in enumerate(path):
        log_probs = torch.log_softmax(model.logits(hidden)[0, 0], dim=-1)
        place = token if drafter.targets is None else drafter.targets.tolist().index(token)
        total += float(log_probs[place])
        seen = torch.cat((torch.arange(rows) > rows - 1 - window, torch.ones(depth + 1, dtype=torch.bool)))[None]
        hidden = model(model.carried(hidden), drafter.embed(torch.tensor([token])), torch.tensor([rows + depth]), cache, seen)
        cache.commit(1)
    return total


@pytest.mark.parametrize("head", HEADS[:3], ids=str)
@torch.inference_mode()
def test_a_nodes_probability_is_the_heads_own_along_its_path(head):
    pair = tiny_eagle3_pair(**head)
    steps = list(decode(pair, PROMPT, Eagle3(12, levels=4, top_k=3), max_new_tokens=14))
    ids = [*PROMPT, *emitted(steps)]
    for step in steps[1:]:
        context = ids[: step.context + 1]
        assert context[-1] == step.root
        for node in range(1, step.nodes):
            path = [node]
            while step.parents[path[-1]]:
                path.append(int(step.parents[path[-1]]))
            expected = path_log_prob(pair, context, step.token_ids[path[::-1]].tolist())
            assert step.path_log_probs[node] == pytest.approx(expected, abs=2e-5)


@pytest.mark.parametrize("head", HEADS, ids=str)
def test_temperature_zero_emits_the_greedy_ids(head):
    pair = tiny_eagle3_pair(**head)
    expected = greedy(pair, 40)
    for method in TREES:
        steps = list(decode(pair, PROMPT, method, max_new_tokens=40))
        assert emitted(steps) == expected
        for step in steps:
            check_step(step)
        vocabulary = pair.drafter.model.config.draft_vocab_size
        if vocabulary < 6:
            assert min(int(step.token_ids[1:].min(initial=5)) for step in steps[1:]) >= 6 - vocabulary
        assert emitted(decode(pair, PROMPT, method, max_new_tokens=7, trace=False)) == expected[:7]


@pytest.mark.parametrize("left", [1, 2, 3, 5, 9])
def test_a_context_that_fills_the_positions_ends_the_output(left):
    pair = tiny_eagle3_pair(positions=16)
    prompt = ([1, 2, 3, 4, 5] * 4)[: 16 - left]
    for method in TREES:
        steps = list(decode(pair, prompt, method, max_new_tokens=100))
        assert emitted(steps) == greedy(pair, left, prompt)
        assert all(step.context + step.depths.max() < 16 for step in steps[1:])


def test_a_tree_that_holds_nearly_every_path_is_accepted_to_its_depth():
    pair = tiny_eagle3_pair(vocab=3, drafted=3)
    steps = list(decode(pair, [1, 0, 2], Eagle3(60, levels=3, top_k=3), max_new_tokens=30))
    assert {step.nodes for step in steps[1:]} == {1 + 3 + 9 + 9}  # two levels complete, the third below three beams
    assert max(len(step.emitted) for step in steps[1:-1]) == 4 and min(len(step.emitted) for step in steps[1:-1]) >= 3


def test_a_long_prompt_is_read_in_parts(monkeypatch):
    pair, prompt = tiny_eagle3_pair(windows=(4,)), [1, 2, 3, 4, 5, 0, 2, 4] * 3
    whole = list(decode(pair, prompt, Eagle3(12), max_new_tokens=12))
    monkeypatch.setattr(drafter_module, "READ_AT_ONCE", 5)
    parts = list(decode(pair, prompt, Eagle3(12), max_new_tokens=12))
    for one, other in zip(whole, parts, strict=True):
        assert one.token_ids.tolist() == other.token_ids.tolist()
        np.testing.assert_allclose(one.path_log_probs, other.path_log_probs, atol=1e-5)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_sampling_has_the_targets_distribution(sampling):
    """The drafted children are chosen, so the walk along the target's own draws is lossless; EAGLE's own sampled
    verification is not taken over."""
    pair = tiny_eagle3_pair(vocab=5)
    pruned = tiny_eagle3_pair(vocab=5, drafted=3)
    expected = plain_distribution(pair, *sampling)
    for chosen, method in ((pair, Eagle3(7)), (pair, Eagle3(3, levels=3, top_k=2)), (pruned, Eagle3(7))):
        assert total_variation(emitted_distribution(chosen, method, *sampling), expected) < 1e-9


def test_records_of_a_step():
    steps = list(decode(tiny_eagle3_pair(), PROMPT, "eagle3:7", temperature=1.0, seed=4, max_new_tokens=30))[1:]
    for step in steps:
        assert step.stop_reason == "fixed budget" and step.nodes == 8
        assert step.surrogate == pytest.approx(np.exp(step.path_log_probs).sum())
        trace = step.trace
        assert trace.marginal_token_ids.shape == trace.marginal_log_probs.shape == (0, 0)
        growth = trace.growth
        assert growth.bought.sum() == 7 and len(growth) > 7
        assert growth.token_ids[:7].tolist() == step.token_ids[1:].tolist()
        assert growth.path_log_probs[7:].max() <= step.path_log_probs.min()
        assert min(step.seconds.draft, step.seconds.build, step.seconds.verify, step.seconds.commit) > 0


def test_a_saved_run_comes_back_as_it_was(tmp_path):
    steps = list(decode(tiny_eagle3_pair(), PROMPT, "eagle3:7", max_new_tokens=20))
    store = RunStore(tmp_path)
    writer = store.create({"pair": "tiny", "method": "eagle3:7", "prompt_ids": PROMPT}, text_of=lambda ids: [f"t{i}" for i in ids],
                          decode=lambda ids: " ".join(f"t{i}" for i in ids))
    for step in steps:
        writer.append(step)
    run = store.open(writer.finish())
    assert [step.emitted for step in run.steps] == [step.emitted for step in steps]
    for saved, step in zip(run.steps[1:], steps[1:], strict=True):
        assert saved.parents.tolist() == step.parents.tolist()
        np.testing.assert_allclose(saved.path_log_probs, step.path_log_probs)
        assert saved.trace.growth.token_ids.tolist() == step.trace.growth.token_ids.tolist()
        assert saved.trace.growth.bought.tolist() == step.trace.growth.bought.tolist()
    assert run_to_json(run)["method"] == "eagle3:7"


def test_the_names_of_the_method():
    method = resolve_method("eagle3:59")
    assert (method.name, method.nodes, method.levels, method.top_k) == ("eagle3:59", 59, 8, 10)
    assert method.max_nodes(0) == 60 and method.search(deepest=99) == (8, 10) and method.search(deepest=2) == (2, 10)
    for name in ("eagle3", "eagle3:0", "eagle3:x", "eagle3:1,2"):
        with pytest.raises(UserError, match="eagle3:16"):
            resolve_method(name)


@pytest.mark.parametrize("name", ["dflash", "bastion", "bastion+ngram", "ddtree:4", "beam:4", "specinfer:2,1", "sequoia:4"])
def test_methods_that_want_marginals_refuse_the_head(name):
    with pytest.raises(UserError, match=r"grows its tree from marginals, .* use eagle3:N"):
        decode(tiny_eagle3_pair(), PROMPT, name)


def test_the_method_refuses_other_drafters_and_rules():
    with pytest.raises(UserError, match="needs an EAGLE-3 head, and this pair's dflash drafter gives marginals"):
        decode(tiny_pair(), PROMPT, "eagle3:16")
    with pytest.raises(UserError, match="needs a drafter"):
        decode(replace(tiny_pair(), drafter=None), PROMPT, "eagle3:16")
    with pytest.raises(UserError, match="leave eagle3:16 to the rule walk"):
        decode(tiny_eagle3_pair(), PROMPT, "eagle3:16", temperature=1.0, acceptance="multi-round")


def test_methods_without_a_drafter_go_with_any():
    pair = tiny_eagle3_pair()
    for name in ("ar", "ngram:4"):
        assert emitted(decode(pair, PROMPT, name, max_new_tokens=12)) == greedy(pair, 12)


def test_calibration_times_the_heads_own_steps():
    draft, other = profile_steps(tiny_eagle3_pair())
    assert draft > 0 and other > 0
