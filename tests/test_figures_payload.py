"""What the browser is given equals the record, and holds no markup made of tokens."""

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest

from bastion.analysis import hindsight_nodes, speed_by_nodes
from bastion.figures import tree_component
from bastion.figures.tree_payload import rounded, run_payload, step_payload
from bastion.token_text import show_token
from tests.synthetic_runs import make_prefill, make_run, make_step
from tests.synthetic_runs import text_of as texts_of


def text_of(token: int) -> str:
    return texts_of([token])[0]


def close(shown, true) -> None:
    np.testing.assert_allclose(np.array(shown, np.float64), true, rtol=1e-3, equal_nan=True)


@pytest.mark.parametrize("nodes", [1, 2, 16, 64])
@pytest.mark.parametrize("seed", range(4))
def test_columns_equal_the_record(nodes, seed):
    step = make_step(index=3, seed=seed, nodes=nodes)
    shown, n, growth = step_payload(step, text_of), step.nodes, step.trace.growth
    assert (shown["i"], shown["kind"], shown["n"], shown["context"]) == (3, "decode", n, 12)
    assert shown["ids"][:n] == step.token_ids.tolist()
    assert shown["parents"][:n] == step.parents.tolist()
    assert shown["depths"][:n] == step.depths.tolist()
    assert shown["accepted"] == step.accepted.tolist()
    close(shown["p"][:n], np.exp(step.path_log_probs))
    close(shown["target"][:n], np.exp(step.trace.target_log_probs))
    close(shown["m"][1:n], np.exp(step.path_log_probs[1:] - step.path_log_probs[step.parents[1:]]))
    past = slice(n, len(growth) + 1)
    assert shown["ids"][past] == growth.token_ids[n - 1:].tolist()
    assert shown["parents"][past] == growth.parents[n - 1:].tolist()
    assert shown["rank"][1:len(growth) + 1] == growth.ranks.tolist()
    assert shown["target"][past] == [None if v != shown["bonus"] else shown["target"][v] for v in range(*past.indices(99))]
    close(shown["gains"], 1e3 * growth.gains)
    close(shown["prices"], 1e3 * growth.prices)
    s = step.seconds
    close(shown["ms"], [1e3 * s.draft, 1e3 * s.build, 1e3 * s.verify, 1e3 * s.commit])
    close(shown["predicted_ms"], 1e3 * step.predicted_verify_seconds)
    close(shown["S"], step.surrogate)
    speed = speed_by_nodes(step)
    close(shown["speeds"], speed.tokens_per_second)
    assert shown["best_n"] == speed.best and shown["hindsight_n"] == hindsight_nodes(step).nodes
    for node in range(n):
        choices = [shown["texts"][place] for place in shown["choices"][node]]
        assert choices == [show_token(text) for text in texts_of(step.trace.target_top_ids[node])]
        close(shown["choice_p"][node], np.exp(step.trace.target_top_log_probs[node].astype(float)))
    assert [shown["texts"][place] for place in shown["tokens"]] == [show_token(text) for text in texts_of(shown["ids"])]


def test_the_bonus_token_takes_the_place_of_a_node_that_was_not_bought():
    step = make_step(nodes=8, seed=1, beyond=30)
    growth = step.trace.growth
    last = int(step.accepted[-1])
    row = next(r for r in range(step.nodes - 1, len(growth)) if growth.parents[r] == last)
    step = replace(step, bonus=int(growth.token_ids[row]))
    shown = step_payload(step, text_of)
    assert shown["bonus"] == row + 1
    assert len(shown["ids"]) == len(growth) + 1


def test_a_bonus_token_that_nobody_drafted_is_a_node_of_its_own():
    step = replace(make_step(nodes=8, seed=1), bonus=96_000)
    shown = step_payload(step, lambda token: f"t{token}")
    bonus = shown["bonus"]
    assert bonus == len(shown["ids"]) - 1 and shown["ids"][bonus] == 96_000
    assert shown["parents"][bonus] == step.accepted[-1]
    assert shown["depths"][bonus] == step.depths[step.accepted[-1]] + 1
    assert shown["p"][bonus] is None and shown["rank"][bonus] is None and shown["m"][bonus] is None


def test_the_targets_probability_of_the_bonus_token_comes_from_its_own_choices():
    step = make_step(nodes=8, seed=2)
    last = int(step.accepted[-1])
    step = replace(step, bonus=int(step.trace.target_top_ids[last, 0]))
    shown = step_payload(step, text_of)
    close(shown["target"][shown["bonus"]], math.exp(step.trace.target_top_log_probs[last, 0]))


def test_every_payload_is_strict_json_whatever_the_step_lacks():
    records = [make_prefill(), make_step(), make_step(trace=False), make_step(priced=False), make_step(nodes=1, beyond=0),
               replace(make_step(), trace=replace(make_step().trace, growth=None))]
    for record in records:
        payload = step_payload(record, text_of, 7)
        again = json.loads(json.dumps(payload, allow_nan=False))
        assert again == payload
    assert "tokens" not in step_payload(make_prefill(), text_of)
    assert step_payload(make_step(trace=False), text_of)["target"] == [None] * 17


def test_pieces_are_what_the_text_shows():
    step = make_step(accepted_depth=2)
    pieces = ["", "\u7f8a"] + ["x"] * (len(step.emitted) - 2)
    assert step_payload(step, text_of, pieces=pieces)["words"] == pieces
    assert step_payload(step, lambda t: str(t))["words"] == [str(t) for t in step.emitted]


def test_the_depth_limit_is_hit_when_every_drafted_position_was_accepted():
    step = make_step(nodes=64, depth=3, accepted_depth=3)
    accepted = len(step.accepted) - 1
    assert step_payload(step, text_of, accepted)["limit"] is True
    assert step_payload(step, text_of, accepted + 1)["limit"] is False
    assert step_payload(step, text_of, None)["limit"] is False


def test_tokens_stay_text():
    """Markup in a token is passed on as the very same text; nothing is built from it here."""
    step = replace(make_step(), emitted=[6, 7], accepted=np.array([0], np.int64))
    payload = step_payload(step, text_of)
    assert payload["words"] == ["<img src=x onerror=alert(1)>", "<0xF0><0x9F>"]


def test_the_script_never_reads_text_as_markup_or_code():
    for name in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "createContextualFragment",
                 "DOMParser", "setHTML", "srcdoc"):
        assert name not in tree_component.JS, name
    assert not re.search(r"\son\w+=", tree_component.HTML)
    assert "http" not in re.sub(r"http://www\.w3\.org/2000/svg", "", tree_component.JS + tree_component.HTML + tree_component.CSS)


def test_every_part_of_the_script_is_in_it():
    folder = tree_component._FOLDER
    assert {path.name for path in folder.glob("*.js")} == set(tree_component._SCRIPTS)
    for path in folder.glob("*"):
        assert len(path.read_text().splitlines()) < 350, path.name


def test_a_run_is_small_enough_to_send_whole():
    steps = [step_payload(step, text_of, 7) for step in make_run(40, nodes=64, beyond=64)]
    payload = run_payload("r", steps, method="bastion", live=True, drafter_depth=7)
    assert len(json.dumps(payload)) / 40 < 16_000
    assert payload["colour"] == "#0072B2" and payload["start"] == 0 and payload["live"] is True


@pytest.mark.parametrize(("value", "shown"), [(None, None), (math.nan, None), (math.inf, None), (0.123456, 0.1235), (0.0, 0.0)])
def test_rounding_keeps_json_safe(value, shown):
    assert rounded(value) == shown


def test_every_reason_to_stop_has_words():
    from bastion.trees import DraftTree
    for reason in re.findall(r'"([a-z ]+)"', DraftTree.__doc__):
        assert f'"{reason}":' in tree_component.JS or f"{reason}:" in tree_component.JS, reason
