"""tau of a drafter on prompt sets: python bench/drafter_acceptance.py FILE.jsonl ... [--limit N]

The target answers each set greedily in batches; the drafter's trees are then replayed against the
answers, which at temperature 0 gives the acceptance that decoding would measure, in a fraction of
its time. Prints one row per set and the mean over sets.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch  # noqa: E402

from bastion.drafters.dflash_drafter import read_depth_temperatures  # noqa: E402
from bastion.drafters.training.continuations import batches_by_length, continue_batch  # noqa: E402
from bastion.drafters.training.evaluate import acceptance  # noqa: E402
from bastion.drafters.training.kinds import load_drafter  # noqa: E402
from bastion.drafters.training.prompts import read_prompts  # noqa: E402
from bastion.drafters.training.run import TrainingJob, load_teacher  # noqa: E402
from bastion.drafters.training.shards import Dialogue  # noqa: E402
from bastion.models.fetch import fetch_default  # noqa: E402
from bastion.models.presets import ASSETS  # noqa: E402

SIZES = (0, 8, 16, 32)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("files", nargs="+", type=Path)
    options.add_argument("--drafter", type=Path, default=ASSETS / "smollm2-135m-dflash")
    options.add_argument("--limit", type=int, default=1000)
    options.add_argument("--max-new-tokens", type=int, default=64)
    asked = options.parse_args()

    drafter = load_drafter(asked.drafter)
    job = TrainingJob(str(fetch_default()), (), asked.drafter, feature_layers=drafter.config.target_layer_ids)
    teacher = load_teacher(job, torch.device("cpu"))
    embedding = teacher.model.get_input_embeddings().weight.detach()
    temperatures = torch.tensor(read_depth_temperatures(asked.drafter, drafter.config.depth))
    means = dict.fromkeys(SIZES, 0.0)
    print(f"{'set':<12}" + "".join(f"{'path' if n == 0 else f'{n} nodes':>10}" for n in SIZES))
    for file in asked.files:
        prompts = [teacher.tokenizer.encode_prompt(p.text) for p in read_prompts(file)[: asked.limit]]
        dialogues = []
        for chosen in batches_by_length([len(p) for p in prompts], 20):
            batch = [prompts[i] for i in chosen]
            done = continue_batch(teacher.model, batch, asked.max_new_tokens, teacher.stop_ids, teacher.layer_ids)
            dialogues += [Dialogue(torch.tensor(p + a.ids), len(p), a.features) for p, a in zip(batch, done, strict=True)]
        tau = acceptance(drafter, embedding.float(), embedding, dialogues, temperatures, SIZES, asked.max_new_tokens)
        means = {n: means[n] + tau[n] / len(asked.files) for n in SIZES}
        print(f"{file.stem:<12}" + "".join(f"{tau[n]:>10.2f}" for n in SIZES), flush=True)
    print(f"{'mean':<12}" + "".join(f"{means[n]:>10.2f}" for n in SIZES))


if __name__ == "__main__":
    main()
