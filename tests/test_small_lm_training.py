"""Training a small language model: its loss against autograd, what it is judged by, and one short run of the command's kind."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from bastion.decoding import decode
from bastion.drafters import load_pair
from bastion.drafters.small_lm_learning import Lesson, distil, judge, text_batch
from bastion.drafters.training.loop import Plan
from bastion.drafters.training.loss import SampledVocabulary
from bastion.drafters.training.run import TrainingJob, run
from bastion.drafters.training.shards import Dialogue
from tests.test_decoding_loop import emitted
from tests.tiny_folders import write_target


def test_the_written_gradient_is_the_losss_own():
    torch.manual_seed(0)
    head, hidden, taught = torch.randn(50, 8), torch.randn(20, 8, requires_grad=True), torch.randn(20, 8)
    labels, answers, lesson = torch.randint(0, 50, (20,)), torch.rand(20) > 0.5, Lesson(0.4, 0.3)
    toward, value, right = distil(hidden, taught, labels, answers, head, SampledVocabulary(torch.arange(50), 50, 0), lesson)
    toward.backward()
    written, hidden.grad = hidden.grad, None
    log_probs = F.log_softmax(hidden @ head.t(), -1)
    soft = -(torch.softmax(taught @ head.t(), -1) * log_probs).sum(-1)
    each = torch.where(answers, 0.4 * soft + 0.6 * F.nll_loss(log_probs, labels, reduction="none"), 0.3 * soft)
    loss = each.sum() / (answers.sum() + 0.3 * (~answers).sum())
    loss.backward()
    assert value == pytest.approx(loss.item(), abs=1e-5)
    torch.testing.assert_close(written, hidden.grad)
    assert right == pytest.approx((log_probs.argmax(-1) == labels)[answers].float().mean().item())


def test_a_batch_holds_whole_texts():
    dialogues = [Dialogue(torch.arange(n), p, torch.full((n - 1, 6), float(n))) for n, p in ((5, 2), (3, 1))]
    batch = text_batch(dialogues, 4)
    assert batch.ids.tolist() == [[0, 1, 2, 3], [0, 1, 0, 0]] and batch.labels.tolist() == [[1, 2, 3, 4], [1, 2, -1, -1]]
    assert batch.answers.tolist() == [[False, True, True, True], [True, True, False, False]]
    assert batch.upper.shape == (2, 4, 4) and batch.upper[1, 1:, 0].tolist() == [3.0, 0.0, 0.0]


def test_a_path_is_judged_by_hand():
    """A model that says what its input says: right where a token is followed by itself."""
    class Parrot(nn.Module):
        dtype = torch.float32

        def forward(self, inputs_embeds, use_cache):
            return type("Output", (), {"last_hidden_state": inputs_embeds})

    ids = torch.tensor([3, 1, 1, 1, 2, 2, 0, 0, 0, 0])  # answer from place 1: first token 1, hits at 1 1 . 2 . 0 0 0
    found = judge(Parrot(), torch.eye(4), torch.eye(4), [Dialogue(ids, 1, torch.zeros(9, 4))], (1, 2, 8))
    assert found["top1"] == pytest.approx(6 / 9)
    # behind the prefilled 1: [1 1 2] [2 0] [0 0 0] by two or more; by one [1 1] [2] [2 0] [0 0] [0]
    assert (found["path:8"], found["path:2"], found["path:1"]) == pytest.approx((8 / 3, 8 / 3, 8 / 5))


def test_a_short_run_makes_a_model_that_drafts(tmp_path):
    target = write_target(tmp_path / "target")
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"id": str(i), "prompt": f"{i} apples and {i + 1} pears"}) + "\n" for i in range(12)))
    job = TrainingJob(target=str(target), prompts=(prompts,), out=tmp_path / "small", kind="small-lm", answer_tokens=60, max_new_tokens=12,
                      batch=8, start_layers=(0, 3), feature_layers=(1, 2), plan=Plan(minutes=1, steps=6, dialogues_per_step=2, log_every=2))
    result = run(job, device="cpu", say=lambda words: None)
    assert result["kind"] == "small-lm" and result["steps"] == 6 and 0 <= result["put_first"] <= 1
    assert "not\nin this folder" in (tmp_path / "small" / "README.md").read_text()
    pair = load_pair(target, small_lm=tmp_path / "small", dtype="float32")
    assert pair.beside[0].gives == "levels"
    prompt = [1, 40, 41, 42]
    assert emitted(decode(pair, prompt, "small-lm:6", max_new_tokens=10)) == emitted(decode(pair, prompt, "ar", max_new_tokens=10))
