"""EAGLE-3 against what SafeAILab's EAGLE and vLLM's speculators computed: forwards, trees, whole decodes.

The fixtures were written by those libraries. A clone alone holds a head of each, its forwards and two
trees; beside the shared folder there are more of them, and whole decodes.
"""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from bastion.decoding import Eagle3, decode
from bastion.drafters import load_pair
from bastion.drafters.eagle3_drafter import load_eagle3
from bastion.models.cache import KVCache
from bastion.trees import DraftTree
from bastion.trees.eagle3_tree import beam_candidates, grow_reranked
from tests.golden import golden

A, B = "drafters/A_eagle3", "drafters/B_speculators"
TOLERANCE = 2e-5
LEAST_GAP = 1e-4
"""Scores closer than this may change places between two float32 programs."""


def verifier() -> SimpleNamespace:
    """What a head asks of the verifier it was made for, a Qwen3 of 7 layers."""
    weight = load_file(golden("drafters/tiny_qwen3_embedding.safetensors"))["model.embed_tokens.weight"]
    return SimpleNamespace(name="tiny_qwen3", device=torch.device("cpu"), dtype=torch.float32, layers=7, hidden_size=64, vocab_size=300,
                           embed=lambda ids: torch.nn.functional.embedding(ids, weight))


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=0)


@torch.no_grad()
def test_every_tensor_of_a_layers_forward():
    drafter = load_eagle3(golden(f"{A}/head_random"), verifier())
    model, expected = drafter.model, load_file(golden(f"{A}/fixture1_layer_forward.safetensors"))
    cache = KVCache(1, 32)

    def check(name: str, hidden: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        n = ids.shape[1]
        positions = torch.arange(cache.length, cache.length + n)
        causal = positions[:, None] >= positions
        output = model(hidden, drafter.embed(ids[0]), positions, cache, causal)
        close(output, expected[f"{name}_hidden"])
        logits = model.logits(output)
        close(logits, expected[f"{name}_draft_logits"])
        assert logits.argmax(-1).tolist() == expected[f"{name}_draft_argmax"].tolist()
        assert drafter.targets[logits.argmax(-1)].tolist() == expected[f"{name}_target_argmax"].tolist()
        for kept, buffer in (("key", cache.layers[0].keys), ("value", cache.layers[0].values)):
            if f"{name}_{kept}" in expected:
                close(buffer[:, :, : cache.length + n], expected[f"{name}_{kept}"])
        return output

    fused = model.fuse(expected["prefill_fused_features"])
    close(fused, expected["prefill_fc_out"])
    output = check("prefill", fused, expected["prefill_input_ids"])
    cache.commit(10)
    check("step", expected["step_hidden_in"], expected["step_input_ids"])
    close(output[:, -1:], expected["step_hidden_in"])
    check("extend", model.fuse(expected["extend_fused_features"]), expected["extend_input_ids"])


def as_drafted(tree) -> SimpleNamespace:
    """The tree in the order of the published code: by level, below each beam of it in turn, most probable first.
    Ours is numbered by probability, and so are a level's beams."""
    order = np.lexsort((np.arange(tree.nodes), tree.parents, tree.depths))
    number = np.argsort(order)
    parents = tree.parents[order]
    return SimpleNamespace(token_ids=tree.token_ids[order].tolist(), depths=tree.depths[order].tolist(),
                           parents=[-1, *number[parents[1:]].tolist()], mask=tree.ancestor_mask()[order][:, order].astype(int).tolist(),
                           path_log_probs=tree.path_log_probs[order])


def check_tree(candidates, record: dict, setting: dict) -> None:
    """Candidates, scores and the tree against one recorded call."""
    scores = np.array(record["all_scores"])
    np.testing.assert_allclose(candidates.path_log_probs, scores, atol=TOLERANCE)
    grown = grow_reranked(candidates, record["input_ids"][-1], setting["total_token_argument"] - 1)
    tree = as_drafted(grown)
    assert record["min_boundary_gap"] >= LEAST_GAP  # none of these is left out
    assert tree.token_ids == record["draft_tokens"]
    assert tree.depths == record["tree_position_ids"]
    assert tree.mask == record["tree_mask"]
    if "selected_scores" in record:
        np.testing.assert_allclose(tree.path_log_probs[1:], record["selected_scores"], atol=TOLERANCE)
    leaves = sorted(set(range(grown.nodes)) - set(tree.parents))
    for leaf, recorded in zip(leaves, record["retrieve_indices"], strict=True):
        path = [leaf]
        while path[-1]:
            path.append(tree.parents[path[-1]])
        assert path[::-1] == [node for node in recorded if node >= 0]


def tree_names() -> list[str]:
    names = sorted(file.stem.removeprefix("fixture2_tree_") for file in golden(A).glob("fixture2_tree_*.json"))
    assert len(names) >= 2
    return names


@pytest.mark.parametrize("name", tree_names())
def test_trees_of_both_calls(name):
    setting = json.loads(golden(f"{A}/fixture2_tree_{name}.json").read_text())
    tensors = load_file(golden(f"{A}/fixture2_tree_tensors.safetensors"))
    drafter = load_eagle3(golden(f"{A}/head_random"), verifier())
    levels, k = setting["depth"] + 1, setting["top_k"]
    session, known = drafter.start(64), 0
    for call in ("call1", "call2"):
        record = setting[call]
        following = record["input_ids"][known + 1:]
        known = len(record["input_ids"]) - 1
        candidates = session.draft_tree(tensors[f"{name}.{call}.fused_features"], following, levels, k)
        assert session.cache.length == known
        first = record["level0"]
        assert candidates.token_ids[:k].tolist() == first["target_ids"]
        for number, level in enumerate(record["levels"]):
            start = k + number * k * k
            assert candidates.token_ids[start:start + k * k].tolist() == np.ravel(level["expand_target_ids"]).tolist()
            np.testing.assert_allclose(candidates.path_log_probs[start:start + k * k], level["cum_scores"], atol=TOLERANCE)
        check_tree(candidates, record, setting)


@pytest.mark.parametrize("name", tree_names())
def test_the_tree_from_the_recorded_scores_alone(name):
    setting = json.loads(golden(f"{A}/fixture2_tree_{name}.json").read_text())
    k = setting["top_k"]
    for call in ("call1", "call2"):
        record = setting[call]
        levels, first = record["levels"], record["level0"]
        candidates = beam_candidates(
            np.array(first["target_ids"]), np.array(first["logp"]), np.array([level["expand_target_ids"] for level in levels]),
            np.array([level["cum_scores"] for level in levels]).reshape(-1, k, k), np.array([level["beam_flat_index"] for level in levels]))
        check_tree(candidates, record, setting)
        wanted = sorted(record["selected_flat_index_sorted"])
        taken = np.sort(np.argsort(-candidates.path_log_probs, kind="stable")[: setting["total_token_argument"] - 1])
        assert taken.tolist() == wanted


def speculators_folders() -> list[str]:
    names = sorted(folder.name for folder in golden(B).glob("eagle3_*") if folder.is_dir())
    assert "eagle3_llama_v090_defaults" in names
    return names


@torch.no_grad()
@pytest.mark.parametrize("name", speculators_folders())
def test_forwards_of_the_speculators_layout(name):
    """Three steps as that library trains them: a step's row sees the first step causally, and of the later ones its own."""
    drafter = load_eagle3(golden(f"{B}/{name}"), verifier())
    model, expected = drafter.model, load_file(golden(f"{B}/{name}_forward.safetensors"))
    assert drafter.feature_layer_ids == (1, 2, 3)  # hidden_states 2, 3, 4
    n = 12
    cache, ids = KVCache(model.config.num_hidden_layers, 3 * n), expected["input_ids"][0]
    hidden = model.fuse(expected["hidden_states"])
    close(hidden, expected["out_fc"])
    visible, newest = torch.ones(n, n, dtype=torch.bool).tril(), torch.zeros(0, dtype=torch.int64)
    for step in range(3):
        positions = torch.arange(n) + step
        newest = torch.cat((newest, positions))
        tokens = torch.cat((ids[step:], ids.new_zeros(step)))
        output = model(model.carried(hidden) if step else hidden, drafter.embed(tokens), positions, cache, visible, newest, torch.arange(n))
        close(output, expected["out_layer_hidden_steps"][step])
        logits = model.logits(output)
        close(logits, expected["out_logits_steps"][step])
        assert logits.argmax(-1).tolist() == expected["out_draft_tokens_steps"][step].tolist()
        cache.commit(n)
        hidden, visible = output, torch.cat((visible, torch.eye(n, dtype=torch.bool)), dim=1)


if golden(f"{A}/head_fullvocab").exists():

    @torch.no_grad()
    def test_a_head_with_the_whole_vocabulary():
        drafter, expected = load_eagle3(golden(f"{A}/head_fullvocab"), verifier()), load_file(golden(f"{A}/fixture5_fullvocab.safetensors"))
        record = json.loads(golden(f"{A}/fixture5_fullvocab_tree_d3_k4_t16.json").read_text())
        assert drafter.targets is None
        following, positions = record["input_ids"][1:], torch.arange(12)
        output = drafter.model(drafter.model.fuse(expected["fused_features"]), drafter.embed(torch.tensor(following)), positions,
                               KVCache(1, 12), positions[:, None] >= positions)
        close(output, expected["first_out_hidden"])
        close(drafter.model.logits(output), expected["first_logits"])
        session = drafter.start(64)
        check_tree(session.draft_tree(expected["fused_features"], following, record["depth"] + 1, record["top_k"]), record, record)


if golden("drafters/tiny_qwen3").exists():

    @pytest.fixture(scope="module")
    def overfit_pair():
        return load_pair(golden("drafters/tiny_qwen3"), golden(f"{A}/head_overfit"), device="cpu", dtype="float32")

    def test_features_of_the_verifier(overfit_pair):
        expected = load_file(golden(f"{A}/fixture3_base_features.safetensors"))
        target = overfit_pair.target
        output = target.prefill(expected["input_ids"][0].tolist(), target.new_cache(9))
        close(output.features, expected["fused"])
        close(output.logits, expected["logits"][0, -1:])

    @pytest.mark.parametrize("name", [file.name for file in sorted(golden(A).glob("fixture3_eagenerate_greedy_*.json"))])
    def test_greedy_decodes_step_by_step(name, overfit_pair):
        """The whole loop beside `EaModel.eagenerate`: the same ids, and the same tree and accepted path at every step."""
        setting = json.loads(golden(f"{A}/{name}").read_text())
        compared = accepted = 0
        for run in setting["runs"]:
            prompt, answer = run["prompt"], run["output_ids"][len(run["prompt"]):]
            method = Eagle3(setting["total_token_argument"] - 1, setting["depth"] + 1, setting["top_k"])
            # their last step is not cut; ours has room for it
            steps = list(decode(overfit_pair, prompt, method, max_new_tokens=len(answer), stop_token_ids=()))
            emitted = [token for step in steps for token in step.emitted]
            assert emitted == answer == run["naive_ids"][len(prompt):][:len(answer)]
            plain = decode(overfit_pair, prompt, "ar", max_new_tokens=len(answer), stop_token_ids=())
            assert emitted == [token for step in plain for token in step.emitted]
            for step, record in zip(steps[1:], run["steps"], strict=True):
                tree = record["tree"]
                assert step.context == tree["input_ids_len"] - 1 and step.root == tree["sample_token"]
                assert len(step.accepted) - 1 == record["verify"]["accept_length"]
                accepted += len(step.accepted) - 1
                if tree["min_boundary_gap"] >= LEAST_GAP:
                    compared += 1
                    found = as_drafted(DraftTree(step.token_ids, step.parents, step.depths, step.path_log_probs, ""))
                    assert found.token_ids == tree["draft_tokens"] and found.parents == tree["parents"]
                    assert found.depths == tree["tree_position_ids"]
        assert compared >= 0.9 * sum(len(run["steps"]) for run in setting["runs"]) and accepted > compared
