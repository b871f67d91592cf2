"""The model card that travels with a trained drafter."""

from __future__ import annotations

from pathlib import Path

from bastion.drafters.dflash import DFlashConfig


def write_card(folder: Path, config: DFlashConfig, result: dict) -> None:
    """Write README.md into the drafter's folder from what `run` measured."""
    tau = "\n".join(f"| {name} | {value:.3f} |" for name, value in result["held_out_tau"].items())
    temperatures = ", ".join(f"{t:.2f}" for t in result["depth_temperatures"])
    target = Path(result["target"]).name
    (folder / "README.md").write_text(
        f"""# DFlash drafter for {target}

A block-diffusion drafter in the published DFlash layout: {config.num_hidden_layers} layers of the target's width
({config.hidden_size}), block size {config.block_size}, features of target layers {list(config.target_layer_ids)}, mask id
{config.mask_token_id}. Embedding and head are the target's.

## Data
{result["dialogues"]:,} dialogues, {result["answer_tokens"]:,} answer tokens, all written greedily by the target itself.

## Training
{result["steps"]:,} steps over {result["positions"]:,} drafted positions in {result["seconds"] / 60:.0f} minutes, seed {result["seed"]}.
Loss: cross-entropy on the greedy token, weighted exp(-(k - 1) / 4) at depth k.

## Held out
tau (tokens a step emits, mean over decode steps) on {result["held_out_dialogues"]} dialogues that were not trained on, 64 new
tokens, temperature 0, replayed from the target's greedy answers:

| best-first tree, nodes beside the root | tau |
| --- | --- |
{tau}

Temperature per depth (growth.json), fitted on the same text: {temperatures}.
""",
        encoding="utf-8",
    )
