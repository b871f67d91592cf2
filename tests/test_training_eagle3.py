"""Training an EAGLE-3 head: what is unrolled is what decoding drafts, soft labels are the target's, and a killed run goes on as if it had not been."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from bastion import decode, load_pair
from bastion.cli import main
from bastion.drafters.eagle3 import Eagle3Model
from bastion.drafters.eagle3_drafter import Eagle3Drafter, load_eagle3
from bastion.drafters.eagle3_weights import save_eagle3
from bastion.drafters.training import loop
from bastion.drafters.training import run as training
from bastion.drafters.training.continuations import continue_batch, library_attention
from bastion.drafters.training.eagle3_pupil import Eagle3Pupil
from bastion.drafters.training.eagle3_replay import acceptance
from bastion.drafters.training.eagle3_start import draft_vocabulary, head_like, start_from_target
from bastion.drafters.training.eagle3_unroll import assemble_unrolled, unroll
from bastion.drafters.training.loop import Plan
from bastion.drafters.training.run import TrainingJob, run
from bastion.drafters.training.shards import Dialogue, ShardReader, write_shard
from bastion.drafters.training.soft_labels import Tail, agreement
from bastion.errors import UserError
from bastion.models.attention import register
from bastion.models.target import Target
from tests.tiny_folders import VOCABULARY, write_target

LAYERS = (0, 1, 2)
STEPS = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_target(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def target(folder) -> Target:
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation=register())
    return Target(model.eval().requires_grad_(False), "tiny")


def head_for(target: Target, size: int = 90) -> tuple[Eagle3Model, torch.Tensor]:
    """A random head, and the target's ids of its vocabulary."""
    torch.manual_seed(3)
    model = Eagle3Model(head_like(target.config, size, LAYERS))
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3) if weight.ndim > 1 else None
    return model, torch.randperm(target.vocab_size)[:size].sort().values


def random_dialogue(ids: list[int], prompt: int = 5, width: int = 192) -> Dialogue:
    generator = torch.Generator().manual_seed(len(ids))
    return Dialogue(torch.tensor(ids), prompt, torch.randn(len(ids) - 1, width, generator=generator))


@pytest.mark.parametrize("beams", [1, 3])
def test_every_drafted_path_has_the_probability_that_training_gives_it(target, beams) -> None:
    """Decoding drafts trees behind two anchors; the same paths as texts, unrolled in one padded batch: same log-probs."""
    model, targets = head_for(target)
    drafter = Eagle3Drafter(model.eval(), target, targets)
    text = torch.randint(0, VOCABULARY, (24,), generator=torch.Generator().manual_seed(0)).tolist()
    features = random_dialogue(text).features
    session, read = drafter.start(40), 0
    dialogues, anchors, expected = [], [], []
    for anchor in (8, 15):
        drafted = session.draft_tree(features[None, read:anchor], text[read + 1 : anchor + 1], STEPS, beams)
        read = anchor
        for leaf in (drafted.depths == STEPS).nonzero()[0]:
            path = []
            while leaf >= 0:
                path.append(leaf)
                leaf = drafted.parents[leaf]
            tokens = drafted.token_ids[path[::-1]].tolist()
            # features from the anchor on are made up: they must not matter
            ahead = torch.randn(STEPS + anchor % 3, features.shape[1])
            dialogues.append(Dialogue(torch.tensor([*text[: anchor + 1], *tokens, *[7] * (anchor % 3)]), 5, torch.cat((features[:anchor], ahead))))
            anchors.append([6, anchor])
            expected.append(drafted.path_log_probs[path[::-1]])
    pupil = Eagle3Pupil(model.train(), target, targets, None, steps=STEPS)
    batch = assemble_unrolled(dialogues, anchors, STEPS)
    with torch.no_grad():
        log_probs = torch.stack([model.logits(out).log_softmax(-1) for out in unroll(model, pupil.embedding, batch)], dim=2)[:, 1]
    own = pupil.own_ids[batch.labels[:, 1]]
    assert (own >= 0).all() and len(dialogues) == 2 * beams**2
    found = log_probs.gather(-1, own[..., None]).squeeze(-1).cumsum(-1)
    assert torch.allclose(found.double(), torch.tensor(np.array(expected)), atol=1e-5)


def test_an_anchor_sees_no_feature_from_its_own_on_and_no_other_anchor(target) -> None:
    model, _ = head_for(target)
    model.train()
    embedding = target.embedding.weight
    dialogue = random_dialogue(list(range(20, 44)))

    def last(dialogue: Dialogue, anchors: list[int]) -> torch.Tensor:
        with torch.no_grad():
            return torch.stack(unroll(model, embedding, assemble_unrolled([dialogue], [anchors], STEPS)))[:, 0, -1]

    before = last(dialogue, [7, 12])
    assert torch.allclose(last(dialogue, [12]), before, rtol=1e-4, atol=1e-3)
    for row, changes in ((12, False), (11, True), (3, True)):
        features = dialogue.features.clone()
        features[row] += 1.0
        assert torch.allclose(last(Dialogue(dialogue.ids, 5, features), [7, 12]), before, rtol=1e-4, atol=1e-3) is not changes


def test_labels_follow_the_anchor_and_end_with_the_text() -> None:
    long, short = random_dialogue(list(range(30, 50))), random_dialogue(list(range(60, 70)))
    batch = assemble_unrolled([long, short], [[6, 17], [8]], 3)
    assert batch.tokens[0].tolist() == [[36, 37, 38], [47, 48, 49]]
    assert batch.labels[0].tolist() == [[37, 38, 39], [48, 49, -1]]
    assert batch.labels[1].tolist() == [[69, -1, -1], [-1, -1, -1]]
    assert batch.following[1].tolist() == [*range(61, 70), *[0] * 10]


def test_soft_labels_are_the_targets_own_distributions(target) -> None:
    """Its upper layers over stored features give what a whole pass gives, and each label its own row of it."""
    ids = torch.randint(3, VOCABULARY, (2, 20), generator=torch.Generator().manual_seed(1))
    with torch.no_grad(), library_attention(target.model):
        out = target.model(ids, output_hidden_states=True, use_cache=False)
    features = torch.cat([out.hidden_states[i + 1] for i in LAYERS], dim=-1)
    dialogues = [Dialogue(ids[0], 4, features[0, :-1]), Dialogue(ids[1, :15], 6, features[1, :14])]
    model, targets = head_for(target)
    pupil = Eagle3Pupil(model, target, targets, Tail(target.model, LAYERS[-1]), steps=STEPS)
    batch = assemble_unrolled(dialogues, [[4, 9], [6, 12]], STEPS)
    probs, at = pupil.distributions(batch, torch.float32)
    for row, index, step, anchor in [(0, 0, 0, 4), (0, 1, 3, 9), (1, 0, 2, 6), (1, 1, 1, 12)]:
        expected = out.logits[row, anchor + step, targets].softmax(-1)
        assert torch.allclose(probs[at[row, index, step]], expected, atol=1e-5)
    greedy = out.logits[0].argmax(-1)
    mixed = torch.cat((ids[0, :5], greedy[4:12], (greedy[12:19] + 1) % VOCABULARY))
    share = agreement(pupil.tail, target.head.weight, features[0, :-1, -64:], mixed, 5)
    assert share == pytest.approx(8 / 15)


def test_a_start_from_the_target_passes_the_last_feature_and_reads_it_as_its_last_layer(target) -> None:
    model, targets = head_for(target)
    start_from_target(model, target.model, targets, torch.Generator().manual_seed(0))
    last = target.model.get_decoder().layers[-1]
    assert torch.equal(model.lm_head.weight, target.head.weight[targets])
    assert torch.equal(model.layers[0].self_attn.v_proj.weight[:, 64:], last.self_attn.v_proj.weight)
    assert torch.equal(model.layers[0].mlp.down_proj.weight, last.mlp.down_proj.weight)
    assert model.fc.weight[:, 128:].diagonal().mean().item() == pytest.approx(1.0, abs=0.05)
    assert model.fc.weight[:, :128].abs().max() < 0.1


def test_the_draft_vocabulary_is_what_occurs_most() -> None:
    assert draft_vocabulary(torch.tensor([0, 9, 3, 3, 8, 1]), 3).tolist() == [1, 2, 4]


@pytest.mark.parametrize("nodes", [0, 6])
def test_replayed_acceptance_is_what_decoding_measures(folder, target, tmp_path, nodes) -> None:
    model, targets = head_for(target, 200)
    with torch.no_grad():  # a head that is right often enough: the target's own rows behind a feature passed through
        start_from_target(model, target.model, targets, torch.Generator().manual_seed(0))
    save_eagle3(model, targets, tmp_path, torch.float32)
    prompts = [[5, 17, 99, 200, 31], [250, 3, 3, 8], [77] * 9]
    answers = continue_batch(target.model, prompts, 16, frozenset(), LAYERS)
    dialogues = [Dialogue(torch.tensor(p + a.ids), len(p), a.features) for p, a in zip(prompts, answers, strict=True)]
    replayed = acceptance(load_eagle3(tmp_path, target), dialogues, (nodes,), max_new_tokens=16)[nodes]
    if nodes == 0:
        assert replayed >= 1.0
        return
    pair = load_pair(folder, tmp_path, device="cpu", dtype="float32")
    tokens = steps = 0
    for prompt in prompts:
        records = [r for r in decode(pair, prompt, method=f"eagle3:{nodes}", max_new_tokens=16, stop_token_ids=[]) if r.kind == "decode"]
        tokens, steps = tokens + sum(len(r.emitted) for r in records), steps + len(records)
    assert replayed == pytest.approx(tokens / steps)


def test_features_of_chosen_layers_are_read_from_answers_that_hold_more(tmp_path) -> None:
    dialogue = random_dialogue(list(range(9)), width=8)
    write_shard(tmp_path / "a-0000.safetensors", [dialogue], (1, 4, 6, 9))
    stored = dialogue.features.to(torch.bfloat16)
    assert torch.equal(ShardReader(tmp_path, (1, 4, 6, 9))[0].features, stored)
    assert torch.equal(ShardReader(tmp_path, (9, 4))[0].features, stored[:, [6, 7, 2, 3]])
    with pytest.raises(UserError, match="hold features of the layers .1, 4, 6, 9. and not of .5."):
        ShardReader(tmp_path, (1, 5))


@pytest.fixture(scope="module")
def trained(folder, tmp_path_factory):
    """The command from prompts to a head; its folder, its result and what it said."""
    out = tmp_path_factory.mktemp("head")
    prompts = out / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"tell me about {i} and {i * i}"}) + "\n" for i in range(30)))
    result = out / "result.json"
    assert main(["train", "--kind", "eagle3", "--target", str(folder), "--prompts", str(prompts), "--out", str(out / "head"),
                 "--answer-tokens", "240", "--max-new-tokens", "12", "--batch", "8", "--steps", "4", "--dialogues-per-step", "4",
                 "--feature-layers", "0,1,2", "--draft-vocabulary", "80", "--unroll", "3", "--device", "cpu", "--json", str(result)]) == 0
    return out / "head", json.loads(result.read_text())


def test_the_command_writes_a_head_that_loads_and_drafts(folder, trained) -> None:
    out, result = trained
    pair = load_pair(folder, out, device="cpu", dtype="float32")
    assert (pair.drafter.kind, pair.drafter.feature_layer_ids, len(pair.drafter.targets)) == ("eagle3", LAYERS, 80)
    prompt = [5, 17, 99, 200, 31]
    ids = lambda method: [t for r in decode(pair, prompt, method=method, max_new_tokens=10, stop_token_ids=[]) for t in r.emitted]  # noqa: E731
    assert ids("eagle3:5") == ids("ar")
    assert result["steps"] == 4 and result["draft_vocabulary"] == 80 and set(result["held_out_tau"]) == {"single path", "8 nodes", "16 nodes", "32 nodes"}
    card = (out / "README.md").read_text()
    assert "EAGLE-3 head" in card and "80 of the" in card and f"{result['answer_tokens']:,} answer tokens" in card


def test_a_killed_run_ends_as_an_undisturbed_one(folder, trained, tmp_path, monkeypatch) -> None:
    """Interrupted after its second saved state and started again, in the same arithmetic: the same weights, bit for bit."""
    for module in (loop, training):
        monkeypatch.setattr(module, "faster_dtype", lambda device, width: torch.float32)
    save, heard = loop.save_state, []

    def train(name: str) -> dict:
        plan = Plan(minutes=1, steps=6, dialogues_per_step=4, anchors_per_dialogue=5, evaluate_every=1e-9, evaluate_dialogues=1, patience=99)
        job = TrainingJob(str(folder), (), tmp_path / name, kind="eagle3", answers=trained[0] / "answers", feature_layers=LAYERS,
                          draft_vocabulary=80, unroll=3, held_out_dialogues=1, plan=plan)
        return run(job, device="cpu", say=heard.append)

    def dies(folder, module, optimizer, progress):
        save(folder, module, optimizer, progress)
        if progress.step == 2:
            raise KeyboardInterrupt

    whole = train("whole")
    monkeypatch.setattr(loop, "save_state", dies)
    with pytest.raises(KeyboardInterrupt):
        train("killed")
    monkeypatch.setattr(loop, "save_state", save)
    resumed = train("killed")
    assert any("from step 2 on" in words for words in heard)
    assert (resumed["steps"], resumed["positions"], resumed["held_out_tau"]) == (whole["steps"], whole["positions"], whole["held_out_tau"])
    for file in ("model.safetensors", "training/state.safetensors"):
        mine, theirs = load_file(tmp_path / "killed" / file), load_file(tmp_path / "whole" / file)
        assert mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)


@pytest.mark.parametrize(
    "options, words",
    [
        (["--prompts", "{prompts}"], "A target of 4 layers has not the three"),
        ([], "with --prompts, or a folder of gathered answers with --answers"),
        (["--answers", "{answers}", "--feature-layers", "0,1,3"], "and not of [3]"),
        (["--answers", "{empty}", "--feature-layers", "0,1,2"], "There are no answers in"),
    ],
)
def test_bad_input_is_one_sentence(folder, trained, tmp_path, capsys, options, words) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "one"}\n')
    options = [option.format(prompts=prompts, answers=trained[0] / "answers", empty=tmp_path / "none") for option in options]
    status = main(["train", "--kind", "eagle3", "--target", str(folder), "--out", str(tmp_path / "out"), "--minutes", "0.01",
                   "--device", "cpu", *options])
    error = capsys.readouterr().err
    assert status == 2 and words in error and error.count("\n") == 1
