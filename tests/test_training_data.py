"""Where training data comes from: prompts kept apart, answers equal to plain decoding, shards that survive a kill."""

from __future__ import annotations

import gzip
import json
import random

import pytest
import torch
from transformers import AutoModelForCausalLM

from bastion.drafters.training.continuations import continue_batch, features_of_texts
from bastion.drafters.training.prompts import NearDuplicates, openers_from, read_prompts
from bastion.drafters.training.shards import Dialogue, ShardReader, write_shard
from bastion.errors import UserError
from bastion.models.attention import register
from tests.tiny_folders import write_target

CLOSING = "\nPlease reason step by step."


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A plain library model, as training loads it."""
    folder = write_target(tmp_path_factory.mktemp("target"))
    return AutoModelForCausalLM.from_pretrained(folder, attn_implementation=register()).eval()


def test_a_text_that_shares_eight_words_with_a_measured_one_is_near_it() -> None:
    avoid = NearDuplicates(["A farmer has seventeen sheep and buys five more of them today." + CLOSING])
    assert "They say a farmer has seventeen sheep and buys five goats" in avoid
    assert "A farmer has seventeen sheep and sells five more of them today" not in avoid


def test_the_closing_line_of_a_benchmark_is_held_against_no_prompt() -> None:
    closing = "\nPlease reason step by step, and put your final answer within the box"
    avoid = NearDuplicates([f"Question number {i} about {word}{closing}" for i, word in enumerate("abcdef")])
    assert "Something else entirely, with nothing in common" + closing not in avoid
    assert "Question number 3 about d" + closing in avoid


def test_openers_take_first_words_and_the_shared_last_line() -> None:
    prompts = read_prompts_from([f"How many apples does person {i} have{CLOSING}" for i in range(40)])
    openers = openers_from(prompts, random.Random(0), words=(2, 4))
    for opener in (next(openers) for _ in range(20)):
        assert "How many apples does".startswith(opener.text)
        assert 2 <= len(opener.text.split()) <= 4
        assert opener.closing == CLOSING


def read_prompts_from(texts):
    from bastion.drafters.training.prompts import Prompt

    return [Prompt(str(i), text) for i, text in enumerate(texts)]


@pytest.mark.parametrize("line, words", [("{", "line 2: not JSON"), ("[]", "line 2: not an object"), ('{"a": 1}', "object 2")])
def test_a_bad_line_is_named(tmp_path, line, words) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "one"}\n' + line + "\n")
    with pytest.raises(UserError, match=words):
        read_prompts(file)


def test_prompts_come_from_plain_and_compressed_files_and_from_turns(tmp_path) -> None:
    (tmp_path / "a.jsonl").write_text('{"prompt": "one"}\n\n{"id": "x", "turns": ["two", "three"]}\n')
    with gzip.open(tmp_path / "b.jsonl.gz", "wt") as file:
        file.write(json.dumps({"prompt": "four"}))
    assert [(p.id, p.text) for p in read_prompts(tmp_path / "a.jsonl")] == [("a-1", "one"), ("x", "two")]
    assert [p.text for p in read_prompts(tmp_path / "b.jsonl.gz")] == ["four"]


def test_batched_answers_are_the_ones_that_each_prompt_gets_alone(model) -> None:
    """Padding, dropping finished rows and prefilling in parts change nothing; nor does the feature pass."""
    rng = random.Random(3)
    prompts = [[rng.randrange(3, 250) for _ in range(rng.randrange(1, 30))] for _ in range(17)]
    stops = frozenset(range(0, 259, 7))  # many, so that rows finish at different times
    batched = continue_batch(model, prompts, 12, stops, (0, 2))
    lengths = set()
    for prompt, answer in zip(prompts, batched, strict=True):
        ids = list(prompt)
        with torch.inference_mode():
            while len(ids) - len(prompt) < 12 and (len(ids) == len(prompt) or ids[-1] not in stops):
                hidden = model.get_decoder()(input_ids=torch.tensor([ids]), attention_mask=causal(len(ids)), use_cache=False)
                ids.append(int(model.lm_head(hidden.last_hidden_state[0, -1]).argmax()))
        assert answer.ids == ids[len(prompt) :]
        lengths.add(len(answer.ids))
        again = features_of_texts(model, [ids], (0, 2))[0]
        assert answer.features.shape == (len(ids) - 1, 2 * 64)
        assert torch.allclose(answer.features, again, atol=2e-4)
    assert len(lengths) > 3


def causal(n: int) -> torch.Tensor:
    return torch.full((1, 1, n, n), torch.finfo(torch.float32).min).triu(1)


def test_sampled_turns_repeat_with_their_seed_and_differ_without(model) -> None:
    prompts = [[5, 6, 7]] * 6
    first, again, other = (continue_batch(model, prompts, 8, frozenset(), top_p=0.95, seed=s) for s in (1, 1, 2))
    assert [a.ids for a in first] == [a.ids for a in again] != [a.ids for a in other]
    assert all(a.features is None for a in first)


def test_shards_give_back_what_was_written_and_new_ones_join(tmp_path) -> None:
    def dialogue(length: int, prompt: int) -> Dialogue:
        features = torch.randn(length - 1, 8).bfloat16()
        return Dialogue(torch.randint(0, 1000, (length,)), prompt, features, f"s{length}")

    written = [dialogue(5, 2), dialogue(9, 4), dialogue(3, 1)]
    write_shard(tmp_path / "a-0000.safetensors", written[:2])
    (tmp_path / "a-0001.partial").write_bytes(b"half a shard")
    (tmp_path / "a-0002.safetensors").write_bytes(b"not one")
    reader = ShardReader(tmp_path)
    assert len(reader) == 2
    write_shard(tmp_path / "b-0000.safetensors", written[2:])
    assert reader.refresh() == 1
    assert reader.answer_tokens == 3 + 5 + 2
    for mine, theirs in zip(reader, written, strict=True):
        assert mine.ids.tolist() == theirs.ids.tolist()
        assert (mine.prompt_length, mine.source) == (theirs.prompt_length, theirs.source)
        assert torch.equal(mine.features, theirs.features)
