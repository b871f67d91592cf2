"""What `bastion train` does differently for each kind of drafter: which features, which start, and what is written at the end."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import load_file, save_file

from bastion.drafters.dflash import DFlashConfig, DFlashDraftModel, build_target_layer_ids
from bastion.drafters.dflash_drafter import GROWTH_FILE
from bastion.drafters.eagle3 import Eagle3Model
from bastion.drafters.eagle3_config import Eagle3Config
from bastion.drafters import small_lm_training
from bastion.drafters.small_lm_training import SmallLmPupil
from bastion.drafters.training.dflash_pupil import DFlashPupil
from bastion.drafters.training.eagle3_pupil import Eagle3Pupil
from bastion.drafters.training.eagle3_start import draft_vocabulary, head_like, start_from_target
from bastion.drafters.training.evaluate import acceptance, fit_depth_temperatures
from bastion.drafters.training.gather import Teacher
from bastion.drafters.training.loop import Pupil, state_file, token_counts
from bastion.drafters.training.shards import Dialogue, ShardReader
from bastion.drafters.training.soft_labels import Tail, agreement
from bastion.drafters.training.warm_start import config_like, warm_start
from bastion.errors import UserError
from bastion.models.target import Target
from bastion.models.tokenizer import Tokenizer

if TYPE_CHECKING:
    from bastion.drafters.training.run import TrainingJob

SIZES = (0, 8, 16, 32)
"""Trees of the last measurement; 0 is the single path."""
AGREES = 0.8
"""The target's upper layers, run again on stored features, must find this share of its own answers: bfloat16 loses a few."""


@dataclass(frozen=True)
class Kind:
    title: str
    default_layers: Callable[[int], tuple[int, ...]]
    """Feature layers for a target of so many."""
    pupil: Callable[[TrainingJob, Teacher, ShardReader, list[Dialogue], Callable[[str], None]], Pupil]
    """A drafter to train, on the device of the teacher, whose model is float32."""
    finish: Callable[[Pupil, Path, list[Dialogue], torch.dtype], tuple[dict[int, float], dict]]
    """Given the best weights' folder: held-out tau by tree size, and what else the result says of the kind."""


def dflash_pupil(job: TrainingJob, teacher: Teacher, reader: ShardReader, held_out: list[Dialogue], say) -> DFlashPupil:
    target = teacher.model
    embedding, head = target.get_input_embeddings().weight.detach(), target.get_output_embeddings().weight.detach()
    config = config_like(
        target.config, job.layers, job.block_size, mask_token(job.mask_token_id, teacher.tokenizer, teacher.stop_ids), teacher.layer_ids
    )
    drafter = DFlashDraftModel(config).to(target.device)
    if not job.random_start:
        warm_start(drafter, target, reader.ids_of(0)[None].to(target.device))
    counts = token_counts(reader, embedding.shape[0])
    return DFlashPupil(drafter, embedding, head, counts, job.plan.anchors_per_dialogue, job.plan.depth_decay)


def finish_dflash(pupil: DFlashPupil, folder: Path, held_out: list[Dialogue], _dtype: torch.dtype) -> tuple[dict[int, float], dict]:
    drafter = load_drafter(folder).to(pupil.embedding.device)
    temperatures = fit_depth_temperatures(drafter, pupil.embedding, pupil.head, held_out)
    tau = acceptance(drafter, pupil.embedding, pupil.head, held_out, temperatures, sizes=SIZES)
    (folder / GROWTH_FILE).write_text(json.dumps({"depth_temperatures": [round(t, 4) for t in temperatures.tolist()]}) + "\n")
    return tau, {"depth_temperatures": temperatures.tolist()}


def eagle3_pupil(job: TrainingJob, teacher: Teacher, reader: ShardReader, held_out: list[Dialogue], say) -> Eagle3Pupil:
    model, layer_ids = teacher.model, teacher.layer_ids
    target = Target(model, Path(job.target).name)
    targets = _vocabulary(job, reader, target.vocab_size)
    head = Eagle3Model(head_like(model.config, len(targets), layer_ids)).to(target.device)
    if not job.random_start:
        start_from_target(head, model, targets.to(target.device), torch.Generator(target.device).manual_seed(job.plan.seed))
    tail = Tail(model, layer_ids[-1])
    width = target.hidden_size
    agreed = [agreement(tail, target.head.weight, d.features[:, -width:].to(target.device), d.ids, d.prompt_length) for d in held_out[:8]]
    found = sum(agreed) / len(agreed)
    if found < AGREES:
        say(f"the target's layers above {layer_ids[-1]} find {found:.0%} of its answers again: labels are its tokens alone")
        tail = None
    else:
        say(f"labels are half the target's token, half its distribution by its layers above {layer_ids[-1]} (which find {found:.0%} of its answers)")
    return Eagle3Pupil(head, target, targets, tail, job.unroll, job.plan.anchors_per_dialogue, job.plan.depth_decay)


def finish_eagle3(pupil: Eagle3Pupil, folder: Path, held_out: list[Dialogue], dtype: torch.dtype) -> tuple[dict[int, float], dict]:
    best = {name.replace("midlayer.", "layers.0."): value for name, value in load_file(folder / "model.safetensors").items()}
    pupil.module.load_state_dict({name: value for name, value in best.items() if name not in ("d2t", "t2d")})
    return pupil.acceptance(held_out, dtype, SIZES), {
        "draft_vocabulary": len(pupil.targets), "feature_layers": list(pupil.layer_ids), "unroll": pupil.steps,
        "soft_labels": pupil.tail is not None,
    }


def small_lm_pupil(job: TrainingJob, teacher: Teacher, reader: ShardReader, held_out: list[Dialogue], say) -> SmallLmPupil:
    target = teacher.model
    small = small_lm_training.start(target, job.start_layers, job.random_start)
    counts = token_counts(reader, target.get_input_embeddings().weight.shape[0])
    return SmallLmPupil(small, target, Tail(target, teacher.layer_ids[-1]), counts)


def finish_small_lm(pupil: SmallLmPupil, folder: Path, held_out: list[Dialogue], _dtype: torch.dtype) -> tuple[dict[int, float], dict]:
    tau, first = small_lm_training.finish(pupil, folder, held_out, SIZES)
    return tau, {"put_first": first}


def usual_layers(layers: int) -> tuple[int, ...]:
    """Those that an EAGLE-3 head reads when its config names none. UserError when they are not three layers."""
    found = _UNNAMED.feature_layers(layers)
    if len(set(found)) < 3 or min(found) < 0:
        raise UserError(f"A target of {layers} layers has not the three that an EAGLE-3 head reads; name some with --feature-layers.")
    return found


def _vocabulary(job: TrainingJob, reader: ShardReader, vocab_size: int) -> torch.Tensor:
    """The draft vocabulary, chosen once: a resumed run has it from its folder, whatever was gathered since."""
    file = state_file(job.out).with_name("vocabulary.safetensors")
    if file.exists():
        return load_file(file)["targets"]
    targets = draft_vocabulary(token_counts(reader, vocab_size), min(job.draft_vocabulary, vocab_size))
    file.parent.mkdir(parents=True, exist_ok=True)
    save_file({"targets": targets}, file)
    return targets


def load_drafter(folder: Path) -> DFlashDraftModel:
    """A DFlash drafter alone, in float32 and without a target to check it against, for measuring it."""
    drafter = DFlashDraftModel(DFlashConfig.from_json((folder / "config.json").read_text(encoding="utf-8")))
    drafter.load_state_dict(load_file(folder / "model.safetensors"))
    return drafter.float().eval()


def mask_token(given: int | None, tokenizer: Tokenizer, stops: frozenset[int]) -> int:
    """The id that marks slots to fill: given, or the last special id that is neither padding nor a stop."""
    backend = tokenizer.backend
    if given is not None:
        if not 0 <= given < len(backend):
            raise UserError(f"The mask id {given} is outside the vocabulary of {len(backend)} ids.")
        return given
    used = {backend.pad_token_id, backend.eos_token_id, backend.bos_token_id, *stops}
    special = sorted(i for i, token in backend.added_tokens_decoder.items() if token.special and i not in used)
    if not special:
        raise UserError("The tokenizer has no spare special token; name an id the target never writes with --mask-id.")
    return special[-1]


def even_layers(layers: int) -> tuple[int, ...]:
    """Five layers, evenly spaced: what a DFlash drafter reads by default."""
    return tuple(dict.fromkeys(build_target_layer_ids(layers, 5)))


_UNNAMED = Eagle3Config(1, 1, 1, 1, 1, 1, None, 1)
KINDS = {
    "dflash": Kind("DFlash drafter", even_layers, dflash_pupil, finish_dflash),
    "eagle3": Kind("EAGLE-3 head", usual_layers, eagle3_pupil, finish_eagle3),
    "small-lm": Kind("small language model", even_layers, small_lm_pupil, finish_small_lm),
}
