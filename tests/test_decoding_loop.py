"""What a decode emits, where it ends, what its records say, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bastion.decoding import Bastion, BestFirst, decode, resolve_method
from bastion.decoding.methods import GraftedBastion, Sequoia
from bastion.errors import UserError
from bastion.trees import FixedBudget
from tests.tiny_pair import tiny_calibration, tiny_pair

PROMPT = [1, 4, 2, 0, 3]
METHOD_NAMES = ["ar", "dflash", "ddtree:1", "ddtree:7", "bastion", "beam:5", "specinfer:2,2,1", "sequoia:6", "ngram:6", "bastion+ngram"]


@pytest.fixture(scope="module")
def pair():
    return tiny_pair(vocab=6, block=4)


def method_of(name, pair):
    adaptive = {"bastion": Bastion, "bastion+ngram": GraftedBastion}
    if name.startswith("sequoia"):
        return resolve_method(name).with_rates((0.5, 0.2, 0.1), pair.drafter.depth)
    return adaptive[name](calibration=tiny_calibration(pair)) if name in adaptive else name


def emitted(steps) -> list[int]:
    return [token for step in steps for token in step.emitted]


def greedy(pair, count, prompt=PROMPT) -> list[int]:
    """The model's own greedy tokens, each from a full forward without cache."""
    ids = list(prompt)
    for _ in range(count):
        n = len(ids)
        mask = torch.full((n, n), -torch.inf, dtype=torch.float64).triu(1)[None, None]
        with torch.inference_mode():
            logits = pair.target.model(torch.tensor([ids]), attention_mask=mask, use_cache=False).logits[0, -1]
        ids.append(int(logits.argmax()))
    return ids[len(prompt) :]


@pytest.mark.parametrize("name", METHOD_NAMES)
def test_temperature_zero_emits_the_greedy_ids(pair, name):
    steps = list(decode(pair, PROMPT, method_of(name, pair), max_new_tokens=40))
    assert emitted(steps) == greedy(pair, 40)


@pytest.mark.parametrize("name", METHOD_NAMES)
def test_records_agree_with_one_another(pair, name):
    steps = list(decode(pair, PROMPT, method_of(name, pair), temperature=1.0, max_new_tokens=40, seed=2))
    assert [step.index for step in steps] == list(range(len(steps)))
    first, *rest = steps
    assert first.kind == "prefill" and first.nodes == 0 and len(first.emitted) == 1
    assert first.root == PROMPT[-1] and first.bonus == first.emitted[0]
    assert (first.seconds.draft, first.seconds.build) == (0.0, 0.0) and first.seconds.verify > 0
    context, root = len(PROMPT), first.bonus
    for step in rest:
        assert step.kind == "decode" and step.context == context and step.root == root == step.token_ids[0]
        assert step.accepted[0] == 0
        assert (step.parents[step.accepted[1:]] == step.accepted[:-1]).all()
        whole = [*step.token_ids[step.accepted[1:]].tolist(), step.bonus]
        assert step.emitted == (whole if step is not rest[-1] else whole[: len(step.emitted)])
        carried = step.token_ids[np.flatnonzero(step.parents == step.accepted[-1])]
        assert step.bonus not in carried
        assert step.surrogate == pytest.approx(np.exp(step.path_log_probs).sum())
        assert len(step.top2_gaps) == len(step.emitted) and (step.top2_gaps >= 0).all()
        assert min(step.seconds.build, step.seconds.verify, step.seconds.commit) > 0
        context, root = context + len(step.accepted), step.bonus
    assert len(emitted(steps)) == 40


def test_trees_have_the_shape_their_method_names(pair):
    shapes = {"ar": 1, "dflash": 4, "ddtree:1": 2, "ddtree:7": 8, "beam:5": 6, "specinfer:2,2,1": 11, "sequoia:6": 7}
    for name, nodes in shapes.items():
        steps = list(decode(pair, PROMPT, method_of(name, pair), max_new_tokens=12))[1:]
        assert {step.nodes for step in steps} == {nodes}, name
    sizes = {step.nodes for step in list(decode(pair, PROMPT, method_of("bastion", pair), max_new_tokens=40))[1:]}
    assert len(sizes) > 1 and max(sizes) <= 16


def test_traces_show_the_targets_view_of_every_node(pair):
    calibration = tiny_calibration(pair)
    steps = list(decode(pair, PROMPT, Bastion(calibration=calibration), max_new_tokens=24))[1:]
    ids = [*PROMPT, *emitted(decode(pair, PROMPT, "ar", max_new_tokens=24))]
    for step in steps:
        trace = step.trace
        assert trace.marginal_token_ids.shape == trace.marginal_log_probs.shape == (3, 6)
        assert trace.target_top_ids.shape == (step.nodes, 5)
        assert np.isnan(trace.target_log_probs[0])
        for node in range(step.nodes):
            path = [node]
            while path[-1]:
                path.append(int(step.parents[path[-1]]))
            prefix = [*ids[: step.context], *step.token_ids[path[::-1]].tolist()]
            log_probs = torch.log_softmax(last_logits(pair, prefix), dim=-1)
            best = log_probs.topk(5)
            assert trace.target_top_ids[node].tolist() == best.indices.tolist()
            np.testing.assert_allclose(trace.target_top_log_probs[node], best.values.numpy(), atol=1e-5)
            if node:
                before = torch.log_softmax(last_logits(pair, prefix[:-1]), dim=-1)[step.token_ids[node]]
                assert trace.target_log_probs[node] == pytest.approx(float(before), abs=1e-5)
        assert trace.growth is not None and trace.growth.bought.sum() == step.nodes - 1
        sizes = np.arange(1, len(trace.predicted_seconds) + 1)
        np.testing.assert_allclose(trace.predicted_seconds, calibration.verify_seconds(sizes, step.context))
        assert len(sizes) >= max(step.nodes, len(trace.growth))
        assert step.predicted_verify_seconds == pytest.approx(trace.predicted_seconds[step.nodes - 1])


def last_logits(pair, ids: list[int]) -> torch.Tensor:
    n = len(ids)
    mask = torch.full((n, n), -torch.inf, dtype=torch.float64).triu(1)[None, None]
    with torch.inference_mode():
        return pair.target.model(torch.tensor([ids]), attention_mask=mask, use_cache=False).logits[0, -1]


def test_top2_gaps_are_those_of_the_targets_logits(pair):
    steps = list(decode(pair, PROMPT, "ddtree:7", max_new_tokens=16))
    ids = [*PROMPT, *emitted(steps)]
    gaps = np.concatenate([step.top2_gaps for step in steps])
    for place, gap in enumerate(gaps):
        best = last_logits(pair, ids[: len(PROMPT) + place]).topk(2).values
        assert gap == pytest.approx(float(best[0] - best[1]), rel=1e-5, abs=1e-6)


def test_without_trace_nothing_but_the_trace_is_missing(pair):
    with_trace = list(decode(pair, PROMPT, "ddtree:7", max_new_tokens=16))
    without = list(decode(pair, PROMPT, "ddtree:7", max_new_tokens=16, trace=False))
    assert emitted(with_trace) == emitted(without)
    assert all(step.trace is None for step in without)
    assert all(step.trace is not None for step in with_trace[1:])


@pytest.mark.parametrize("name", METHOD_NAMES)
@pytest.mark.parametrize("limit", range(1, 9))
def test_max_new_tokens_is_never_exceeded(pair, name, limit):
    steps = list(decode(pair, PROMPT, method_of(name, pair), max_new_tokens=limit, trace=False))
    assert emitted(steps) == greedy(pair, limit)
    assert all(step.emitted for step in steps)


@pytest.mark.parametrize("name", METHOD_NAMES)
def test_a_stop_token_ends_the_output_wherever_it_lies_in_a_step(pair, name):
    for stop in range(6):
        steps = list(decode(pair, PROMPT, method_of(name, pair), temperature=1.0, seed=5, max_new_tokens=30, stop_token_ids=[stop]))
        found = emitted(steps)
        whole = emitted(decode(pair, PROMPT, "ar", temperature=1.0, seed=5, max_new_tokens=30, stop_token_ids=[]))
        expected = whole[: whole.index(stop) + 1] if stop in whole else whole
        assert found == expected


def test_a_stop_token_inside_the_accepted_path_cuts_there(pair):
    """Find a step that accepts a drafted token before its last, then make that token the stop."""
    steps = list(decode(pair, PROMPT, "ddtree:7", max_new_tokens=40, stop_token_ids=[]))
    long = next(step for step in steps if len(step.emitted) >= 3)
    before = [token for step in steps[: long.index] for token in step.emitted]
    inner = next(token for token in long.emitted[:-1] if token not in before)
    cut = list(decode(pair, PROMPT, "ddtree:7", max_new_tokens=40, stop_token_ids=[inner]))
    assert emitted(cut) == [*before, *long.emitted[: long.emitted.index(inner) + 1]]
    assert len(cut[-1].emitted) < len(long.emitted)


def test_the_pairs_own_stop_tokens_count_unless_others_are_given():
    stops = frozenset(range(6))
    pair = tiny_pair(vocab=6, stops=stops)
    assert len(emitted(decode(pair, PROMPT, "ar", max_new_tokens=9))) == 1
    assert len(emitted(decode(pair, PROMPT, "ar", max_new_tokens=9, stop_token_ids=()))) == 9


@pytest.mark.parametrize("name", METHOD_NAMES)
@pytest.mark.parametrize("left", [1, 2, 3, 5, 9])
def test_a_context_that_fills_the_positions_ends_the_output(name, left):
    pair = tiny_pair(vocab=6, positions=16)
    prompt = [1, 2, 3, 4, 5] * 4
    prompt = prompt[: 16 - left]
    steps = list(decode(pair, prompt, method_of(name, pair), max_new_tokens=100))
    assert emitted(steps) == greedy(pair, left, prompt)
    for step in steps[1:]:
        assert step.context + step.depths.max() < 16


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"messages_or_ids": []}, "empty"),
        ({"messages_or_ids": [1, 6]}, "outside the vocabulary"),
        ({"messages_or_ids": [-1]}, "outside the vocabulary"),
        ({"messages_or_ids": [1.5]}, "whole numbers"),
        ({"messages_or_ids": [True]}, "whole numbers"),
        ({"messages_or_ids": None}, "whole numbers"),
        ({"messages_or_ids": "text"}, "no tokenizer"),
        ({"messages_or_ids": [1] * 64}, "64 tokens"),
        ({"messages_or_ids": [1] * 500}, "500 tokens"),
        ({"method": "nonsense"}, "no method 'nonsense'"),
        ({"method": "ddtree"}, "ddtree:16"),
        ({"method": "ddtree:0"}, "ddtree:16"),
        ({"method": "ddtree:x"}, "ddtree:16"),
        ({"method": "beam"}, "beam:16"),
        ({"acceptance": "hope"}, "multi-round"),
        ({"acceptance": "block", "method": "ddtree:4", "temperature": 1.0}, "specinfer"),
        ({"acceptance": "multi-round", "method": "ngram:4", "temperature": 1.0}, "rule walk"),
        ({"acceptance": "block", "method": "specinfer:2,1", "temperature": 1.0}, "one path"),
        ({"method": "ngram:0"}, "ngram:16"),
        ({"method": "sequoia"}, "sequoia:16"),
        ({"method": Sequoia(200, rates=(0.5, 0.2))}, "fewer nodes"),
        ({"method": "specinfer"}, "specinfer:4,2,2,1"),
        ({"method": "specinfer:2,0"}, "specinfer:4,2,2,1"),
        ({"method": "specinfer:99,99,99"}, "8192"),
        ({"method": "bastion+ngram:4"}, "just bastion"),
        ({"method": "ar:3"}, "nothing behind a colon"),
        ({"method": 3}, "built method"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"top_k": 1.5}, "top_k"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"max_new_tokens": 2.5}, "max_new_tokens"),
        ({"stop_token_ids": [99]}, "outside the vocabulary"),
        ({"stop_token_ids": ["x"]}, "whole numbers"),
        ({"seed": -1}, "seed"),
        ({"seed": "x"}, "seed"),
    ],
)
def test_bad_input_is_refused_before_anything_is_decoded(pair, arguments, words):
    with pytest.raises(UserError, match=words):
        decode(**({"pair": pair, "messages_or_ids": PROMPT, "method": "ar"} | arguments))


def test_a_method_that_drafts_needs_a_drafter(pair):
    from dataclasses import replace

    alone = replace(pair, drafter=None)
    with pytest.raises(UserError, match="needs a drafter"):
        decode(alone, PROMPT, "dflash")
    assert emitted(decode(alone, PROMPT, "ar", max_new_tokens=5)) == greedy(pair, 5)
    steps = list(decode(alone, PROMPT, "ngram:4", max_new_tokens=20))
    assert emitted(steps) == greedy(pair, 20) and max(step.nodes for step in steps) > 1


def test_a_built_method_is_taken_as_it_is(pair):
    steps = list(decode(pair, PROMPT, BestFirst(FixedBudget(5)), max_new_tokens=9))
    assert {step.nodes for step in steps[1:]} == {5}
    assert emitted(steps) == greedy(pair, 9)


def test_abandoning_a_decode_leaves_the_pair_usable(pair):
    steps = decode(pair, PROMPT, "ddtree:7", max_new_tokens=30)
    next(steps), next(steps)
    steps.close()
    assert not torch.is_inference_mode_enabled()
    assert emitted(decode(pair, PROMPT, "ddtree:7", max_new_tokens=30)) == greedy(pair, 30)


def test_two_decodes_may_take_turns(pair):
    left = decode(pair, PROMPT, "ddtree:7", max_new_tokens=20)
    right = decode(pair, [2, 2, 5], "dflash", max_new_tokens=20)
    found = ([], [])
    alive = True
    while alive:
        alive = False
        for place, steps in enumerate((left, right)):
            step = next(steps, None)
            if step is not None:
                alive = True
                found[place].extend(step.emitted)
    assert found[0] == greedy(pair, 20)
    assert found[1] == greedy(pair, 20, [2, 2, 5])


def test_reading_the_prompt_can_be_followed_and_given_up(monkeypatch):
    import bastion.models.target as target_module

    monkeypatch.setattr(target_module, "PREFILL_CHUNK", 4)
    pair, heard = tiny_pair(), []
    ids = [1, 2, 3, 4, 5, 0, 1, 2, 3, 4]
    steps = list(decode(pair, ids, "ar", max_new_tokens=3, on_read=heard.append))
    assert heard == [0, 4, 8]
    monkeypatch.undo()
    assert [s.emitted for s in steps] == [s.emitted for s in decode(pair, ids, "ar", max_new_tokens=3)]

    def give_up(read):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        next(decode(pair, ids, "ar", max_new_tokens=3, on_read=give_up))


def test_bastion_above_temperature_0_with_a_stored_calibration(tmp_path, monkeypatch):
    monkeypatch.setenv("BASTION_HOME", str(tmp_path))
    pair = tiny_pair()
    tiny_calibration(pair).save()
    steps = list(decode(pair, [1, 2], "bastion", temperature=0.8, max_new_tokens=5))
    assert sum(len(step.emitted) for step in steps) == 5
