"""An EAGLE-3 head beside its target: loading, the checks that the two fit, and drafting beams."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from bastion.drafters.dflash_drafter import drafting_dtype
from bastion.drafters.eagle3 import Eagle3Model
from bastion.drafters.eagle3_config import Eagle3Config, is_eagle3
from bastion.errors import UserError
from bastion.models.cache import KVCache
from bastion.models.quick_modules import quicken
from bastion.models.registry import DrafterLoader
from bastion.models.target import Target
from bastion.models.top_k import top_k_log_probs
from bastion.trees.eagle3_tree import LEVELS, BeamCandidates, beam_candidates

READ_AT_ONCE = 512
"""Context rows of one pass: bounds the attention scores of a long prompt."""
CONVERT = ("""python -c 'import torch; from safetensors.torch import save_file; save_file({k: v.contiguous() for k, v in """
           """torch.load("pytorch_model.bin", map_location="cpu", weights_only=True).items()}, "model.safetensors")'""")
_OTHERS = ("rotary_emb.inv_freq", "verifier_lm_head.weight", "verifier_norm.weight")
"""Ends of names that some writers save beside the head and nothing here needs."""


class Eagle3Drafter:
    """`targets` int64 [draft vocabulary] are the target's ids of the head's own, None when they are the same;
    `embedding` is the head's own embedding, None for the target's.

    The head runs in the number type of `model`: what it proposes decides how fast the answer comes and never which.
    """

    kind = "eagle3"
    gives = "trees"
    depth = LEVELS

    def __init__(self, model: Eagle3Model, target: Target, targets: torch.Tensor | None = None,
                 embedding: nn.Embedding | None = None):
        self.model, self.target, self.embedding = model, target, embedding
        self.targets = None if targets is None else targets.to(target.device)
        self.dtype = model.norm.weight.dtype
        self.feature_layer_ids = model.config.feature_layers(target.layers)

    def start(self, capacity: int) -> Eagle3Session:
        return Eagle3Session(self, capacity)

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """[1, n, hidden] embeddings of the target's ids int64 [n]."""
        found = self.target.embed(token_ids) if self.embedding is None else self.embedding(token_ids)
        return found.to(self.dtype)[None]

    def propose(self, hidden: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The k most probable tokens behind each row of hidden [1, n, hidden]: the target's ids and log-probs, [n, k].
        The log-probs are over the draft vocabulary."""
        log_probs, ids = top_k_log_probs(self.model.logits(hidden)[0], k)
        return ids if self.targets is None else self.targets[ids], log_probs


class Eagle3Session:
    """One sequence: keeps the keys of rows with the target's features, and forgets drafted ones after every step."""

    def __init__(self, drafter: Eagle3Drafter, capacity: int):
        self.drafter, self.capacity = drafter, capacity
        self.cache: KVCache | None = None

    @torch.inference_mode()
    def draft_tree(self, features: torch.Tensor, following: Sequence[int], levels: int, k: int) -> BeamCandidates:
        """Read the new context, then search `levels` levels deep with k beams.

        features [1, c, layers * hidden] of the c context tokens that are new since the last call; following: the
        token behind each of them, the last of which is the root. The first call sets the most there can be of
        levels times k.
        """
        drafter, model = self.drafter, self.drafter.model
        k = min(k, model.config.draft_vocab_size)
        if self.cache is None:
            self.cache = KVCache(model.config.num_hidden_layers, self.capacity + levels * k)
        device = drafter.target.device
        hidden = self._read(features.to(drafter.dtype), torch.tensor(following, device=device))
        tokens, scores = drafter.propose(hidden, k)
        first = tokens[0], scores[0]
        drafted: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
        beams, beam_scores = first
        hidden = hidden.expand(1, k, -1)
        alone = torch.eye(k, dtype=torch.bool, device=device)
        visible, context = alone, self.cache.length
        root = torch.full((k,), context - 1, device=device)
        for level in range(levels - 1):
            newest = context + torch.arange((level + 1) * k, device=device) // k
            output = model(model.carried(hidden), drafter.embed(beams), newest[-k:], self.cache, visible, newest, root)
            self.cache.commit(k)
            tokens, scores = drafter.propose(output, k)
            scores = beam_scores[:, None] + scores
            beam_scores, chosen = scores.flatten().topk(k)
            drafted.append((tokens, scores, chosen))
            above = chosen // k
            beams, hidden = tokens.flatten()[chosen], output[:, above]
            visible = torch.cat((visible[above], alone), dim=1)
        self.cache.truncate(context)
        return _candidates(first, drafted, k)

    def _read(self, features: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
        """Rows of the context into the cache; the last row's output, [1, 1, hidden]."""
        model, cache = self.drafter.model, self.cache
        for start in range(0, len(following), READ_AT_ONCE):
            part = slice(start, start + READ_AT_ONCE)
            tokens = following[part]
            positions = torch.arange(cache.length, cache.length + len(tokens), device=tokens.device)
            causal = positions[:, None] >= positions if len(tokens) > 1 else None
            hidden = model(model.fuse(features[:, part]), self.drafter.embed(tokens), positions, cache, causal)
            cache.commit(len(tokens))
        return hidden[:, -1:]


def _candidates(first, drafted, k: int) -> BeamCandidates:
    """On the CPU, by one transfer: scores are float32 and travel as their bits."""
    tokens = torch.cat([first[0], *(tokens.flatten() for tokens, _, _ in drafted)])
    scores = torch.cat([first[1], *(scores.flatten() for _, scores, _ in drafted)])
    beams = torch.cat([chosen for _, _, chosen in drafted]) if drafted else tokens[:0]
    numbers = torch.cat((tokens.int(), scores.view(torch.int32), beams.int())).cpu().numpy()
    tokens, bits, beams = np.split(numbers, [len(tokens), 2 * len(tokens)])
    tokens, scores, shape = tokens.astype(np.int64), bits.view(np.float32), (len(drafted), k, k)
    return beam_candidates(tokens[:k], scores[:k], tokens[k:].reshape(shape), scores[k:].reshape(shape),
                           beams.astype(np.int64).reshape(len(drafted), k))


def load_eagle3(folder: Path, target: Target) -> Eagle3Drafter:
    """Read config.json and the safetensors of either layout; check them against `target`. UserError."""
    config = Eagle3Config.from_json((folder / "config.json").read_text(encoding="utf-8"))
    tensors = _read_tensors(folder)
    if "layers.0.self_attn.q_norm.weight" in tensors:
        config = replace(config, qk_norm=True)  # the public layout's config does not say
    check_fit(config, target)
    targets = _vocabulary_map(config, tensors, target)
    own = tensors.pop("embed_tokens.weight", None)
    if own is None and config.hidden_size != target.hidden_size:
        raise UserError(f"The EAGLE-3 head is {config.hidden_size} wide, {target.name} is {target.hidden_size}, and the head brings "
                        "no embedding of its own (embed_tokens.weight); copy the folder again.")
    if own is not None and own.shape != (target.vocab_size, config.hidden_size):
        raise UserError(f"The EAGLE-3 head's embedding has the shape {list(own.shape)} where {target.name} needs "
                        f"{[target.vocab_size, config.hidden_size]}; give a head that was trained for this target.")
    shares_head = "lm_head.weight" not in tensors and config.draft_vocab_size == target.vocab_size \
        and config.hidden_size == target.hidden_size
    with torch.device("meta"):
        model = Eagle3Model(config)
    if shares_head:
        model.lm_head = nn.Identity()
    _assign(model, tensors, folder)
    dtype = drafting_dtype(target, stored=model.norm.weight.dtype)
    model = model.to(target.device, dtype).eval().requires_grad_(False)
    if shares_head:
        model.lm_head = target.head_in(dtype)
    embedding = None
    if own is not None:
        embedding = nn.Embedding.from_pretrained(own.to(target.device, dtype), freeze=True)
    return Eagle3Drafter(quicken(model), target, targets, embedding)


def check_fit(config: Eagle3Config, target: Target) -> None:
    """Raise one UserError that says in what the head was made for another target."""
    pairs = [("features' width", config.target_hidden_size, target.hidden_size)]
    if config.vocab_size is not None:
        pairs.append(("vocabulary size", config.vocab_size, target.vocab_size))
    for what, head_has, target_has in pairs:
        if head_has != target_has:
            raise UserError(f"The EAGLE-3 head does not fit {target.name}: its {what} is {head_has} and the target's is {target_has}. "
                            "Give a head that was trained for this target.")
    if config.draft_vocab_size > target.vocab_size:
        raise UserError(f"The EAGLE-3 head does not fit {target.name}: it drafts from {config.draft_vocab_size} tokens and the target "
                        f"has {target.vocab_size}. Give a head that was trained for this target.")
    layers = config.feature_layers(target.layers)
    if config.feature_layer_ids is None and len(set(layers)) < len(layers):
        raise UserError(f"The EAGLE-3 head names no feature layers, and of a target of {target.layers} layers the usual three are not "
                        "different ones; give a head whose config.json names them.")
    if -1 in layers:
        raise UserError("The EAGLE-3 head reads the target's embeddings as one of its features (layer id 0), which is not supported; "
                        "give another head.")
    if not all(0 <= index < target.layers for index in layers):
        raise UserError(f"The EAGLE-3 head does not fit {target.name}: it reads the outputs of layers {list(layers)} and the target has "
                        f"layers 0 to {target.layers - 1}. Give a head that was trained for this target.")


def _vocabulary_map(config: Eagle3Config, tensors: dict[str, torch.Tensor], target: Target) -> torch.Tensor | None:
    """The target's ids of the draft vocabulary, int64 [draft vocabulary]; None when it is the whole. Takes both maps out of
    `tensors`. On disk d2t is an offset: target id = draft id + d2t[draft id]."""
    d2t, t2d = tensors.pop("d2t", None), tensors.pop("t2d", None)
    size = config.draft_vocab_size
    if size == target.vocab_size:
        return None
    if d2t is None:
        raise UserError(f"The EAGLE-3 head drafts from {size} of the target's {target.vocab_size} tokens and has no map d2t that says "
                        "which; copy the folder again.")
    if d2t.shape != (size,):
        raise UserError(f"The EAGLE-3 head's map d2t has the shape {list(d2t.shape)} and its vocabulary {size} tokens; copy the folder again.")
    targets = torch.arange(size) + d2t.to("cpu", torch.int64)
    if int(targets.min()) < 0 or int(targets.max()) >= target.vocab_size or len(targets.unique()) < size:
        raise UserError(f"The EAGLE-3 head's map d2t does not lead to {size} different tokens of the target's {target.vocab_size}; "
                        "it must hold offsets to add to the draft's ids. Copy the folder again.")
    if t2d is not None:
        kept = torch.zeros(target.vocab_size, dtype=torch.bool)
        kept[targets] = True
        if t2d.shape != kept.shape or not torch.equal(t2d.to("cpu", torch.bool), kept):
            raise UserError("The EAGLE-3 head's two vocabulary maps, d2t and t2d, contradict each other; copy the folder again.")
    return targets


def _read_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors of the folder under the names of the speculators layout."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise UserError(f"There is no model.safetensors in {folder}, and other files of weights are not read because they can run code; "
                        f"if the head comes as pytorch_model.bin, load it from a folder of yours, converted there once with: {CONVERT}")
    try:
        tensors = {name: tensor for file in files for name, tensor in load_file(file).items()}
    except (SafetensorError, OSError) as error:
        raise UserError(f"The EAGLE-3 head's weights in {folder} cannot be read ({error}); copy them again.") from None
    named = {}
    for name, tensor in tensors.items():
        name = name.removeprefix("model.")
        if name.startswith("midlayer."):
            name = "layers.0." + name.removeprefix("midlayer.")
        if not name.endswith(_OTHERS):
            named[name] = tensor
    return named


def _assign(model: Eagle3Model, tensors: dict[str, torch.Tensor], folder: Path) -> None:
    wanted = model.state_dict()
    wrong = sorted((wanted.keys() ^ tensors.keys())
                   | {name for name in wanted.keys() & tensors.keys() if wanted[name].shape != tensors[name].shape})
    if wrong:
        shown = ", ".join(wrong[:3]) + (", ..." if len(wrong) > 3 else "")
        raise UserError(f"The EAGLE-3 head's weights in {folder} do not match its config.json ({shown}); copy both again.")
    model.load_state_dict(tensors, assign=True)


LOADER = DrafterLoader("EAGLE-3", is_eagle3, load_eagle3, gives="trees")
