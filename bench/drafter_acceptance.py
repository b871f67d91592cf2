"""tau of a drafter on prompt sets: python -m bench.drafter_acceptance FILE.jsonl ... [--limit N]

The target answers each set greedily in batches; the drafter's trees are then replayed against the
answers, which at temperature 0 gives the acceptance that decoding would measure, in a fraction of
its time. Prints one row per set and the mean over sets. The drafter may be DFlash or EAGLE-3 (--drafter).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import AutoConfig

from bench.ending import in_one_sentence
from bastion.drafters.dflash_drafter import read_depth_temperatures
from bastion.drafters.eagle3_config import Eagle3Config, is_eagle3
from bastion.drafters.eagle3_drafter import load_eagle3
from bastion.drafters.training import eagle3_replay
from bastion.drafters.training.continuations import batches_by_length, continue_batch
from bastion.drafters.training.evaluate import acceptance
from bastion.drafters.training.gather import Teacher
from bastion.drafters.training.kinds import load_drafter
from bastion.drafters.training.prompts import read_prompts
from bastion.drafters.training.run import TrainingJob, load_teacher
from bastion.drafters.training.shards import Dialogue
from bastion.models.fetch import fetch_default
from bastion.models.presets import ASSETS
from bastion.models.target import Target

SIZES = (0, 8, 16, 32)


Measure = Callable[[list[Dialogue], int], dict[int, float]]


def config_of(folder: Path) -> dict:
    return json.loads((folder / "config.json").read_text(encoding="utf-8"))


def teacher_reading(folder: Path, layers: tuple[int, ...]) -> Teacher:
    return load_teacher(TrainingJob(str(fetch_default()), (), folder, feature_layers=layers), torch.device("cpu"))


def dflash(folder: Path) -> tuple[Teacher, Measure]:
    drafter = load_drafter(folder)
    teacher = teacher_reading(folder, drafter.config.target_layer_ids)
    embedding = teacher.model.get_input_embeddings().weight.detach()
    temperatures = torch.tensor(read_depth_temperatures(folder, drafter.config.depth))
    return teacher, lambda dialogues, longest: acceptance(drafter, embedding.float(), embedding, dialogues, temperatures, SIZES, longest)


def eagle3(folder: Path) -> tuple[Teacher, Measure]:
    config = Eagle3Config.from_json((folder / "config.json").read_text(encoding="utf-8"))
    teacher = teacher_reading(folder, config.feature_layers(AutoConfig.from_pretrained(fetch_default()).num_hidden_layers))
    drafter = load_eagle3(folder, Target(teacher.model, "default"))
    return teacher, lambda dialogues, longest: eagle3_replay.acceptance(drafter, dialogues, SIZES, longest)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("files", nargs="+", type=Path)
    options.add_argument("--drafter", type=Path, default=ASSETS / "smollm2-135m-dflash")
    options.add_argument("--limit", type=int, default=1000)
    options.add_argument("--max-new-tokens", type=int, default=64)
    asked = options.parse_args()

    teacher, measure = dflash(asked.drafter) if not is_eagle3(config_of(asked.drafter)) else eagle3(asked.drafter)
    means = dict.fromkeys(SIZES, 0.0)
    print(f"{'set':<12}" + "".join(f"{'path' if n == 0 else f'{n} nodes':>10}" for n in SIZES))
    for file in asked.files:
        prompts = [teacher.tokenizer.encode_prompt(p.text) for p in read_prompts(file)[: asked.limit]]
        dialogues = []
        for chosen in batches_by_length([len(p) for p in prompts], 20):
            batch = [prompts[i] for i in chosen]
            done = continue_batch(teacher.model, batch, asked.max_new_tokens, teacher.stop_ids, teacher.layer_ids)
            dialogues += [Dialogue(torch.tensor(p + a.ids), len(p), a.features) for p, a in zip(batch, done, strict=True)]
        tau = measure(dialogues, asked.max_new_tokens)
        means = {n: means[n] + tau[n] / len(asked.files) for n in SIZES}
        print(f"{file.stem:<12}" + "".join(f"{tau[n]:>10.2f}" for n in SIZES), flush=True)
    print(f"{'mean':<12}" + "".join(f"{means[n]:>10.2f}" for n in SIZES))


if __name__ == "__main__":
    with in_one_sentence():
        main()
