"""A DFlash drafter beside its target: loading, the check that the two fit, and drafting."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch

from bastion.drafters.dflash import DFlashCache, DFlashConfig, DFlashDraftModel
from bastion.drafters.dflash_frequent import frequent_head, read_frequent_ids
from bastion.drafters.dflash_lean import LeanDFlash, lean_dflash
from bastion.drafters.dflash_speculators import config_from_speculators, is_speculators_dflash
from bastion.drafters.dflash_static import StaticDFlashSession, static_session
from bastion.drafters.dflash_weights import Extras, build, head_of, target_ids
from bastion.errors import UserError
from bastion.models.number_type import cpu_prefers_bfloat16
from bastion.models.quick_modules import quicken
from bastion.models.registry import DrafterLoader
from bastion.models.static_cache import StorePool
from bastion.models.target import Target
from bastion.models.top_k import top_k_log_probs

GROWTH_FILE = "growth.json"


class DFlashDrafter:
    """`depth_temperatures` [depth] divide the logits of each depth before they grow a tree;
    `acceptance_rates` by rank are what static trees are built from, None when they were not measured.

    The drafter runs in the number type of `model`, whatever the target's: what it proposes decides
    how fast the answer comes and never which. `extras`: an embedding, a head and a vocabulary of its own.
    """

    kind = "dflash"
    gives = "marginals"

    def __init__(self, model: DFlashDraftModel, target: Target, depth_temperatures: tuple[float, ...],
                 acceptance_rates: tuple[float, ...] | None = None, extras: Extras = Extras(),  # noqa: B008 - frozen
                 lean: LeanDFlash | None = None, frequent_ids: np.ndarray | None = None):
        self.acceptance_rates = acceptance_rates
        self.model = model
        self.target = target
        self.lean = lean
        """The forward that sessions run in place of the model's own, where there is one; `DFlashSession` runs the model's."""
        self.dtype = model.norm.weight.dtype
        config = model.config
        few = None if frequent_ids is None or extras.head is not None or target.padded else frequent_head(target, frequent_ids, self.dtype)
        self.speaks_frequent_ids = few is not None
        """Whether `target_ids` are the target's own ids, of which the rare ones are left out."""
        if few is not None:
            self.head = _boxed(few)
        elif extras.head is not None:
            self.head = _boxed(head_of(extras.head, target.device, self.dtype))
        else:
            self.head = _targets_head(target, self.dtype)
        self.embedding = None if extras.embedding is None else extras.embedding.to(target.device, self.dtype)
        self.target_ids: np.ndarray | None = None
        """int64 [draft vocab]: the target's id of each drafted id, where not every id of the target is drafted."""
        if self.speaks_frequent_ids:
            self.target_ids = frequent_ids
        elif config.draft_vocab_size is not None:
            self.target_ids = target_ids(extras, config.draft_vocab_size, target.vocab_size).numpy()
        self.depth = config.depth
        self.stores: StorePool | None = None
        """Beside a target of fixed shapes: buffers that outlive the sessions which write them."""
        self.feature_layer_ids = model.config.target_layer_ids
        self.temperatures = torch.tensor(depth_temperatures, dtype=torch.float32, device=target.device)[:, None]
        mask_ids = torch.full((config.block_size - 1,), config.mask_token_id, device=target.device)
        with torch.inference_mode():
            self.mask_embeddings = self.embed(mask_ids)

    def with_every_id(self) -> DFlashDrafter:
        """The same drafter over the target's whole vocabulary, where it speaks the frequent ids alone."""
        if not self.speaks_frequent_ids:
            return self
        whole = copy.copy(self)
        whole.head = _targets_head(self.target, self.dtype)
        whole.target_ids, whole.speaks_frequent_ids = None, False
        return whole

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """[..., hidden] in the drafter's number type, of int64 [...] ids of the target."""
        found = self.target.embed(token_ids) if self.embedding is None else self.embedding[token_ids]
        scale = self.model.config.embedding_scale
        return found.to(self.dtype) if scale == 1.0 else found.to(self.dtype) * scale

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[n, draft vocab], before the depths' temperatures, of hidden [n, hidden]; as the head gives them, or float32."""
        logits, config = self.head(hidden), self.model.config
        if config.logit_scale == 1.0 and config.logit_softcap is None:
            return logits
        logits = logits.float()
        if config.logit_scale != 1.0:
            logits = logits * config.logit_scale
        if config.logit_softcap is not None:
            logits = torch.tanh(logits / config.logit_softcap) * config.logit_softcap
        return logits

    def start(self, capacity: int) -> DFlashSession | StaticDFlashSession:
        return static_session(self, capacity) or (DFlashSession if self.lean is None else LeanDFlashSession)(self, capacity)


def _targets_head(target: Target, dtype: torch.dtype) -> torch.nn.Module:
    """The target's own head where it is in the drafter's number type, else a copy that is."""
    return target.head if dtype == target.dtype else _boxed(target.head_in(dtype))


def _boxed(head: torch.nn.Module) -> torch.nn.Module:
    """In a box, so that a drafter's own head and a model's layers are swapped alike."""
    return quicken(torch.nn.Sequential(head))


class DFlashSession:
    """One sequence: reads each context token once, and forgets its drafted block after every pass."""

    def __init__(self, drafter: DFlashDrafter, capacity: int):
        self.drafter = drafter
        config = drafter.model.config
        self.cache = DFlashCache(config, capacity + config.block_size, like=drafter.mask_embeddings)

    @torch.inference_mode()
    def draft(self, features: torch.Tensor, root: int, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Top-k token ids and log-probs [depth, k] behind `root`; features [1, c, layers * h] of the new context."""
        drafter, device = self.drafter, self.drafter.target.device
        anchor = drafter.embed(torch.tensor([root], device=device))
        block = torch.cat((anchor, drafter.mask_embeddings))
        start = self.cache.length + features.shape[1]
        hidden = self._hidden(block, features.to(drafter.dtype))
        self.cache.crop(start)
        log_probs, found = top_k_log_probs(drafter.logits(hidden[-drafter.depth :]), k, drafter.temperatures)
        ids, bits = torch.stack((found.int(), log_probs.view(torch.int32))).cpu().numpy()  # one copy brings both
        ids = ids.astype(np.int64)
        return ids if drafter.target_ids is None else drafter.target_ids[ids], bits.view(np.float32)

    def _hidden(self, block: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        """[B, h] of a block [B, h] behind features [1, c, layers * h]."""
        first = self.cache.length
        positions = torch.arange(first, first + features.shape[1] + len(block), device=block.device)[None]
        return self.drafter.model(block[None], features, positions, self.cache)[0]


class LeanDFlashSession(DFlashSession):
    """The same through the drafter's lean forward."""

    def _hidden(self, block: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        return self.drafter.lean(block, features[0], self.cache)


def load_dflash(folder: Path, target: Target, read_config: Callable[[str], DFlashConfig] = DFlashConfig.from_json,
                dtype: torch.dtype | None = None) -> DFlashDrafter:
    """Read config.json, model.safetensors and, when there, growth.json; check them against `target`. dtype: to run
    in, in place of the one that would be chosen."""
    config = read_config((folder / "config.json").read_text(encoding="utf-8"))
    check_fit(config, target)
    model, extras = build(config, folder)
    if config.hidden_size != target.hidden_size and (extras.embedding is None or extras.head is None):
        raise _no_fit(target, "hidden size", config.hidden_size, target.hidden_size)
    if config.draft_vocab_size is not None and extras.head is None:
        raise UserError(f"The drafter in {folder} speaks {config.draft_vocab_size} tokens and has no lm_head for them; copy it again.")
    dtype = dtype or drafting_dtype(target, stored=model.norm.weight.dtype)
    model = model.to(target.device, dtype).eval().requires_grad_(False)
    lean = lean_dflash(model)
    model = quicken(model)
    return DFlashDrafter(model, target, read_depth_temperatures(folder, config.depth), read_acceptance_rates(folder), extras, lean,
                         read_frequent_ids(folder, target.vocab_size))


def drafting_dtype(target: Target, stored: torch.dtype) -> torch.dtype:
    """The target's number type, but bfloat16 for weights stored so beside a float32 target where a CPU is quicker in it."""
    if target.device.type == "cpu" and (target.dtype, stored) == (torch.float32, torch.bfloat16) and cpu_prefers_bfloat16():
        return torch.bfloat16
    return target.dtype


def check_fit(config: DFlashConfig, target: Target) -> None:
    """Raise one UserError that says in what the drafter was made for another target."""
    pairs = (
        ("hidden size", config.target_hidden_size or config.hidden_size, target.hidden_size),
        ("vocabulary size", config.vocab_size, target.vocab_size),
        ("number of target layers", config.num_target_layers or target.layers, target.layers),
    )
    for what, drafter_has, target_has in pairs:
        if drafter_has != target_has:
            raise _no_fit(target, what, drafter_has, target_has)
    outside = [index for index in config.target_layer_ids if not -1 <= index < target.layers]
    if outside or not config.target_layer_ids:
        raise UserError(
            f"The drafter does not fit {target.name}: it reads target layers {list(config.target_layer_ids)} "
            f"and the target has layers 0 to {target.layers - 1}. Give a drafter that was trained for this target."
        )
    if not 0 <= config.mask_token_id < target.vocab_size:
        raise UserError(
            f"The drafter's mask token {config.mask_token_id} is outside the target's vocabulary of "
            f"{target.vocab_size}. Give a drafter that was trained for this target."
        )


def _growth_numbers(folder: Path, key: str) -> tuple[float, ...] | None:
    """A list of growth.json; None when the file or the key is absent, empty when it holds anything else."""
    file = folder / GROWTH_FILE
    if not file.exists():
        return None
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        return None if key not in found.keys() else tuple(float(value) for value in found[key])
    except (OSError, ValueError, TypeError, AttributeError):
        return ()


def read_acceptance_rates(folder: Path) -> tuple[float, ...] | None:
    """`acceptance_rates` of growth.json, by rank from the most probable on; None when there are none."""
    rates = _growth_numbers(folder, "acceptance_rates")
    if rates is not None and not (rates and all(rate >= 0 for rate in rates) and sum(rates) <= 1 + 1e-6):
        raise UserError(f"{folder / GROWTH_FILE} must hold acceptance_rates of 0 or more that add up to 1 at most; "
                        "mend them or delete them.")
    return rates


def read_depth_temperatures(folder: Path, depth: int) -> tuple[float, ...]:
    """`depth_temperatures` of growth.json, one per drafted depth; ones when there are none."""
    file = folder / GROWTH_FILE
    values = _growth_numbers(folder, "depth_temperatures")
    if values is None:
        return (1.0,) * depth
    if len(values) != depth or not all(0 < value < float("inf") for value in values):
        raise UserError(f"{file} must hold {depth} positive depth_temperatures; mend it or delete it.")
    return values


def _no_fit(target: Target, what: str, drafter_has: int, target_has: int) -> UserError:
    return UserError(
        f"The drafter does not fit {target.name}: its {what} is {drafter_has} and the target's is {target_has}. "
        "Give a drafter that was trained for this target."
    )


def is_dflash(config: dict) -> bool:
    """Whether a parsed config.json is z-lab's: its settings in `dflash_config`, or at the top of one so named."""
    return "dflash_config" in config or any("DFlash" in str(name) for name in config.get("architectures") or [])


SPECULATORS_LOADER = DrafterLoader(
    "DFlash of speculators", is_speculators_dflash, partial(load_dflash, read_config=config_from_speculators)
)
LOADER = DrafterLoader("DFlash", lambda config: "speculators_model_type" not in config and is_dflash(config), load_dflash)
