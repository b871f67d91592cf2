"""The model card that travels with a trained drafter."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path


def write_card(folder: Path, result: dict) -> None:
    """Write README.md into the drafter's folder from what `run` measured and the config.json beside it."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    words = {"dflash": dflash_words, "eagle3": eagle3_words, "small-lm": small_lm_words}[result["kind"]](config, result)
    tau = "\n".join(f"| {name} | {value:.3f} |" for name, value in result["held_out_tau"].items())
    (folder / "README.md").write_text(
        f"""# {words.title} for {Path(result["target"]).name}

{words.shape}

## Data
{result["dialogues"]:,} dialogues, {result["answer_tokens"]:,} answer tokens, all written greedily by the target itself.

## Training
{result["steps"]:,} steps over {result["positions"]:,} drafted positions in {result["seconds"] / 60:.0f} minutes, seed {result["seed"]}.
{words.loss}

## Held out
tau (tokens a step emits, mean over decode steps) on {result["held_out_dialogues"]} dialogues that were not trained on, 64 new
tokens, temperature 0, replayed from the target's greedy answers:

| {words.tree}, nodes beside the root | tau |
| --- | --- |
{tau}
{words.more}""",
        encoding="utf-8",
    )


@dataclass(frozen=True)
class Words:
    """What a card says of one kind."""

    title: str
    tree: str
    shape: str
    loss: str
    more: str = ""


def dflash_words(config: dict, result: dict) -> Words:
    own = config["dflash_config"]
    temperatures = ", ".join(f"{t:.2f}" for t in result["depth_temperatures"])
    return Words(
        "DFlash drafter", "best-first tree",
        f"A block-diffusion drafter in the published DFlash layout: {config['num_hidden_layers']} layers of the target's width\n"
        f"({config['hidden_size']}), block size {config['block_size']}, features of target layers {own['target_layer_ids']}, mask id\n"
        f"{own['mask_token_id']}. Embedding and head are the target's.",
        "Loss: cross-entropy on the greedy token, weighted exp(-(k - 1) / 4) at depth k.",
        f"\nTemperature per depth (growth.json), fitted on the same text: {temperatures}.\n",
    )


def eagle3_words(config: dict, result: dict) -> Words:
    label = "half on the target's greedy token, half on its distribution." if result["soft_labels"] else "on the target's greedy token."
    return Words(
        "EAGLE-3 head", "EAGLE-3's dynamic tree",
        f"One layer of the target's width ({config['hidden_size']}) in the public EAGLE-3 layout, with its own head over "
        f"{config['draft_vocab_size']:,} of the\ntarget's {config['vocab_size']:,} tokens, the most frequent in its answers. It reads the "
        f"outputs of target layers {result['feature_layers']}\n(counted from 0), which its config.json names: a loader that takes EAGLE-3's "
        "usual three unasked misreads\nit unless these are the same. The embedding is the target's.",
        f"Training-time test of {result['unroll']} steps on the head's own outputs, weighted exp(-(k - 1) / 4) at step k. "
        f"Loss: cross-entropy,\n{label}",
    )


def small_lm_words(config: dict, result: dict) -> Words:
    return Words(
        "Small language model", "path of the most probable tokens",
        f"{config['num_hidden_layers']} layers of the target's width ({config['hidden_size']}), started from layers of the target. Embedding "
        "and head are the target's and are not\nin this folder (`from_target` in config.json).",
        "Loss: cross-entropy, on answers half with the target's distribution and half with the token it chose, on prompts with the\nformer.",
        f"\nThe target's token is put first at {100 * result['put_first']:.1f} % of the positions. The single path is of 8 tokens.\n",
    )
