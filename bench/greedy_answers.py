"""The target's greedy answers to prompt sets, with what the drafter drafts behind each of their tokens.

Made once, prompt by prompt, and kept in build/replay/ (not part of the repository): a stopped run goes on
where it was. What the benchmarks beside this file replay (`bastion.decoding.replay`).
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import numpy as np
import torch

from bastion.decoding.replay import KnownAnswer, draft_behind_each
from bastion.drafters.training.continuations import batches_by_length, continue_batch
from bastion.drafters.training.prompts import read_prompts
from bastion.models.pair import Pair
from bastion.models.presets import PRESETS

ROOT = Path(__file__).resolve().parents[1]
CACHE = ROOT / "build" / "replay"
KEPT = 64
"""Tokens kept of each depth's marginals: a tree of 64 nodes beside the root looks at no more."""
BATCH = 10


def known_answers(files: list[Path], limit: int, max_new_tokens: int, pair_name: str = "smollm2-135m", cache: Path = CACHE, skip: int = 0,
                  say=lambda words: print(words, file=sys.stderr, flush=True)) -> dict[str, list[KnownAnswer]]:
    """{set: answers to the first turns of its first `limit` prompts, but for the first `skip`}; those not in the cache are made."""
    folder = cache / _digest(pair_name)
    found: dict[str, list[KnownAnswer]] = {}
    maker: _Maker | None = None
    for file in files:
        prompts = read_prompts(file)[skip:limit]
        places = [folder / f"{file.stem}-{skip + number}-{max_new_tokens}.npz" for number in range(len(prompts))]
        missing = [number for number, place in enumerate(places) if not place.exists()]
        if missing:
            maker = maker or _Maker(pair_name)
            maker.make([prompts[i].text for i in missing], [places[i] for i in missing], max_new_tokens, lambda done, all_, name=file.stem: say(
                f"{name}: {done} of {all_} answers made"))
        found[file.stem] = [_read(place) for place in places]
    return found


class _Maker:
    """Answers in batches with the library's model in float32; drafts with the pair's own drafter, as in decoding."""

    def __init__(self, pair_name: str) -> None:
        from transformers import AutoModelForCausalLM

        from bastion import load_pair
        from bastion.models.attention import register
        from bastion.models.quiet import quieten_libraries

        quieten_libraries()
        self.pair: Pair = load_pair(pair_name, device="cpu", dtype="float32")
        self.model = AutoModelForCausalLM.from_pretrained(PRESETS[pair_name].target, dtype=torch.float32, attn_implementation=register()).eval()

    def make(self, texts: list[str], places: list[Path], max_new_tokens: int, say) -> None:
        prompts = [self.pair.tokenizer.encode_prompt(text) for text in texts]
        done = 0
        for chosen in batches_by_length([len(p) for p in prompts], BATCH):
            answers = continue_batch(self.model, [prompts[i] for i in chosen], max_new_tokens, self.pair.stop_token_ids,
                                     tuple(self.pair.drafter.feature_layer_ids))
            for i, answer in zip(chosen, answers, strict=True):
                _write(places[i], draft_behind_each(self.pair, prompts[i], answer.ids, answer.features[None], KEPT))
            done += len(chosen)
            say(done, len(prompts))


def _write(place: Path, known: KnownAnswer) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    half = place.with_suffix(".half.npz")
    np.savez(half, prompt_ids=np.array(known.prompt_ids), answer=np.array(known.answer), ids=known.ids, log_probs=known.log_probs)
    half.replace(place)


def _read(place: Path) -> KnownAnswer:
    with np.load(place) as held:
        return KnownAnswer(held["prompt_ids"].tolist(), held["answer"].tolist(), held["ids"], held["log_probs"])


def _digest(pair_name: str) -> str:
    """Of the drafter's files: answers drafted by another one are not taken for this one's."""
    folder = Path(PRESETS[pair_name].drafter)
    digest = hashlib.sha256()
    for file in sorted(folder.glob("*.json")) + sorted(folder.glob("*.safetensors")):
        digest.update(file.read_bytes())
    return f"{pair_name}-{digest.hexdigest()[:10]}"
