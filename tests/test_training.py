"""Training: no leak from the anchor on, the right loss, replayed acceptance equal to decoding, and a run that resumes."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from transformers import AutoModelForCausalLM

from bastion import decode, load_pair
from bastion.cli import main
from bastion.decoding import BestFirst
from bastion.drafters.dflash import DFlashConfig, DFlashDraftModel
from bastion.drafters.training.batches import assemble, choose_anchors
from bastion.drafters.training.continuations import continue_batch
from bastion.drafters.training.evaluate import acceptance, draft_all, fit_depth_temperatures
from bastion.drafters.training.loop import Plan, learning_rate
from bastion.drafters.training.loss import SampledVocabulary, depth_weights, draft_loss
from bastion.drafters.training.shards import Dialogue
from bastion.drafters.training.warm_start import config_like, warm_start
from bastion.trees import FixedBudget
from tests.tiny_folders import write_drafter, write_target


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("pair")
    return write_target(root / "target"), write_drafter(root / "drafter")


@pytest.fixture(scope="module")
def pair(folders):
    return load_pair(folders[0], folders[1], device="cpu", dtype="float32")


def random_dialogue(length: int = 30, prompt: int = 6, width: int = 24) -> Dialogue:
    generator = torch.Generator().manual_seed(length)
    ids = torch.randint(0, 50, (length,), generator=generator)
    return Dialogue(ids, prompt, torch.randn(length - 1, width, generator=generator))


def small_drafter() -> DFlashDraftModel:
    torch.manual_seed(0)
    return DFlashDraftModel(DFlashConfig(12, 2, 2, 1, 6, 16, 50, 4, 49, (0, 1), 3)).train()


def test_an_anchor_sees_nothing_from_its_own_position_on() -> None:
    """Features from the anchor on, and other blocks, change nothing in a block; the one before it does."""
    dialogue, drafter, embedding = random_dialogue(), small_drafter(), torch.randn(50, 12)

    def block(dialogue: Dialogue, anchors: list[int], which: int) -> torch.Tensor:
        batch = assemble([dialogue], [anchors], 4, 49)
        hidden = drafter(embedding[batch.block_ids], batch.context, batch.positions, attention_mask=batch.mask)
        return hidden.view(-1, 4, 12)[which]

    before = block(dialogue, [8, 15, 22], 1)
    later = dialogue.features.clone()
    later[15:] += 1.0
    assert torch.allclose(block(Dialogue(dialogue.ids, 6, later), [8, 15, 22], 1), before, atol=1e-5)
    assert torch.allclose(block(dialogue, [15], 0), before, atol=1e-5)
    earlier = dialogue.features.clone()
    earlier[14] += 1.0
    assert not torch.allclose(block(Dialogue(dialogue.ids, 6, earlier), [8, 15, 22], 1), before, atol=1e-3)


def test_labels_are_the_tokens_behind_the_anchor_and_padding_has_none() -> None:
    long, short = random_dialogue(30), random_dialogue(12)
    batch = assemble([long, short], [[6, 28], [10]], 4, 49)
    assert batch.labels[0].tolist() == [long.ids[7:10].tolist(), [int(long.ids[29]), -1, -1]]
    assert batch.labels[1].tolist() == [[int(short.ids[11]), -1, -1], [-1, -1, -1]]
    assert batch.block_ids[0].tolist() == [int(long.ids[6]), 49, 49, 49, int(long.ids[28]), 49, 49, 49]


def test_anchors_are_answer_tokens_with_a_successor() -> None:
    dialogue = random_dialogue(30, prompt=6)
    assert choose_anchors(dialogue, None) == list(range(6, 29))
    drawn = choose_anchors(dialogue, 9, random.Random(0))
    assert len(set(drawn)) == 9 and set(drawn) <= set(range(6, 29))


def test_the_loss_over_the_whole_vocabulary_is_weighted_cross_entropy() -> None:
    torch.manual_seed(1)
    hidden, head = torch.randn(2, 3, 4, 16), torch.randn(40, 16)
    labels = torch.randint(0, 40, (2, 3, 4))
    labels[1, 2, 1:] = -1
    weights = depth_weights(4)
    vocabulary = SampledVocabulary(torch.arange(40), frequent=40, sampled=0)
    loss, shares = draft_loss(hidden, labels, head, vocabulary, weights)
    each = F.cross_entropy((hidden @ head.t()).flatten(0, 2), labels.clamp_min(0).flatten(), reduction="none").view_as(labels)
    present = (labels >= 0) * weights
    assert torch.allclose(loss, (each * present).sum() / present.sum(), atol=1e-5)
    right = ((hidden @ head.t()).argmax(-1) == labels).sum((0, 1)) / (labels >= 0).sum((0, 1))
    assert torch.allclose(shares, right)


def test_the_sampled_normaliser_is_right_on_average() -> None:
    torch.manual_seed(2)
    logits = torch.randn(2000)
    vocabulary = SampledVocabulary(torch.arange(2000), frequent=100, sampled=200)
    estimates = []
    for _ in range(300):
        ids, correction, local = vocabulary.choose(torch.tensor([5]))
        assert ids[local].tolist() == [5]
        estimates.append((logits[ids] + correction).exp().sum().item())
    assert np.mean(estimates) == pytest.approx(logits.exp().sum().item(), rel=0.02)


def test_a_warm_start_copies_the_last_layers_and_passes_the_last_feature(folders) -> None:
    target = AutoModelForCausalLM.from_pretrained(folders[0])
    drafter = DFlashDraftModel(config_like(target.config, 2, 4, 0, (0, 3)))
    warm_start(drafter, target, torch.arange(40)[None])
    mine, theirs = drafter.layers[1], target.get_decoder().layers[3]
    assert torch.equal(mine.mlp.up_proj.weight, theirs.mlp.up_proj.weight)
    assert torch.equal(mine.self_attn.q_proj.weight, theirs.self_attn.q_proj.weight)
    norm = mine.self_attn.q_norm.weight
    assert norm[0] > 0 and (norm == norm[0]).all()
    assert torch.allclose(drafter.fc.weight[:, 64:].diagonal().mean(), torch.tensor(1.0), atol=0.05)


@pytest.mark.parametrize("nodes", [0, 6])
def test_replayed_acceptance_is_what_decoding_measures(pair, nodes) -> None:
    prompts = [[5, 17, 99, 200, 31], [250, 3, 3, 8], [77] * 9]
    model, ids = pair.target.model, pair.drafter.feature_layer_ids
    answers = continue_batch(model, prompts, 24, frozenset(), ids)
    dialogues = [Dialogue(torch.tensor(p + a.ids), len(p), a.features) for p, a in zip(prompts, answers, strict=True)]
    embedding = head = model.get_input_embeddings().weight  # tied
    replayed = acceptance(pair.drafter.model, embedding, head, dialogues, sizes=(nodes,), max_new_tokens=24)[nodes]
    tokens = steps = 0
    for prompt in prompts:
        method = "dflash" if nodes == 0 else BestFirst(FixedBudget(nodes + 1))
        records = [r for r in decode(pair, prompt, method=method, max_new_tokens=24, stop_token_ids=[]) if r.kind == "decode"]
        tokens, steps = tokens + sum(len(r.emitted) for r in records), steps + len(records)
    assert replayed == pytest.approx(tokens / steps)


def test_the_temperature_that_text_was_drawn_at_is_found(pair) -> None:
    """Tokens drawn from the drafter's own first-depth marginals at 1.6: that is the temperature with the least loss."""
    model, drafter = pair.target.model, pair.drafter.model
    embedding = head = model.get_input_embeddings().weight  # tied
    generator = torch.Generator().manual_seed(4)
    features = torch.randn(179, 128, generator=generator)
    ids = [7, 8]
    with torch.inference_mode():
        while len(ids) < 180:
            batch = assemble([Dialogue(torch.tensor([*ids, 0]), 1, features)], [[len(ids) - 1]], 6, 0)
            hidden = drafter(embedding[batch.block_ids], batch.context, batch.positions, attention_mask=batch.mask)
            ids.append(int(torch.multinomial((hidden[0, 1] @ head.t() / 1.6).softmax(-1), 1, generator=generator)))
    dialogue = Dialogue(torch.tensor(ids), 1, features)
    best = fit_depth_temperatures(drafter, embedding, head, [dialogue], anchors_per_dialogue=None)
    assert 1.3 < best[0] < 2.0

    def loss(factor: float) -> float:
        drafted = draft_all(drafter, embedding, head, dialogue, best * factor, k=259)
        labels = torch.tensor(ids[2:]).numpy()
        return -sum(drafted.log_probs[i, 0][drafted.ids[i, 0] == label].item() for i, label in enumerate(labels))

    assert loss(1.0) <= min(loss(0.93), loss(1.07)) + 1e-3


def test_the_learning_rate_warms_up_holds_and_falls() -> None:
    plan = Plan(minutes=1, learning_rate=1e-3, warmup=0.1, hold=0.5)
    rates = [learning_rate(plan, done) for done in (0.0, 0.05, 0.1, 0.3, 0.5, 0.75, 1.0, 1.5)]
    assert rates[0] < rates[1] < rates[2] == rates[3] == rates[4] == 1e-3
    assert rates[4] > rates[5] > rates[6] == rates[7] == pytest.approx(5e-5)


def test_the_command_trains_resumes_and_writes_a_drafter_that_loads(folders, tmp_path, capsys) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"tell me about {i} and {i * i}"}) + "\n" for i in range(40)))
    out = tmp_path / "drafter"

    def train(minutes: str) -> dict:
        status = main(["train", "--target", str(folders[0]), "--prompts", str(prompts), "--out", str(out), "--answer-tokens", "300",
                       "--max-new-tokens", "12", "--batch", "8", "--minutes", minutes, "--layers", "1", "--block-size", "5",
                       "--device", "cpu", "--evaluate-every", "0.02", "--json", "-"])
        assert status == 0
        return json.loads(capsys.readouterr().out)

    first = train("0.03")
    shards = sorted(file.name for file in (out / "answers").iterdir())
    again = train("0.06")
    assert again["steps"] > first["steps"] > 0 and again["seconds"] > first["seconds"]
    assert sorted(file.name for file in (out / "answers").iterdir()) == shards
    assert first["answer_tokens"] == again["answer_tokens"] >= 300
    loaded = load_pair(folders[0], out, device="cpu", dtype="float32")
    assert loaded.drafter.depth == 4
    assert loaded.drafter.temperatures.flatten().tolist() == pytest.approx(again["depth_temperatures"], abs=1e-3)
    assert f"{again['answer_tokens']:,} answer tokens" in (out / "README.md").read_text()
    rows = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    assert any("held_out_tau" in row for row in rows)


@pytest.mark.parametrize(
    "options, words",
    [
        (["--prompts", "missing.jsonl"], "There is no file missing.jsonl"),
        (["--prompts", "{prompts}", "--feature-layers", "0,9"], "outside the target's layers 0 to 3"),
        (["--prompts", "{prompts}", "--mask-id", "9999"], "outside the vocabulary"),
    ],
)
def test_bad_input_is_one_sentence(folders, tmp_path, capsys, options, words) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "one"}\n')
    options = [option.format(prompts=prompts) for option in options]
    status = main(["train", "--target", str(folders[0]), "--out", str(tmp_path / "out"), "--answer-tokens", "5",
                   "--max-new-tokens", "5", "--minutes", "0.01", "--device", "cpu", *options])
    error = capsys.readouterr().err
    assert status == 2 and words in error and error.count("\n") == 1
