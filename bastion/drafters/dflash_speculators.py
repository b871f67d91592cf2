"""DFlash folders in the format of vLLM's `speculators` library.

Field names and their meaning are those that speculators 0.9.0 writes and loads: the layers' shape
under `transformer_layer_config`, `aux_hidden_state_layer_ids` as indices into Hugging Face's
`hidden_states` (one more than z-lab's ids), `draft_vocab_size` with the tensors `d2t`, `t2d` and
`lm_head.weight` where the vocabulary is pruned, no embedding or head where the verifier's serve.
`sample_from_anchor`: vllm-project/speculators pull request 760. The folder's `config.py`, `auto_map`
and the verifier it names are not looked at: nothing in a folder is run, and the target is the user's.
"""

from __future__ import annotations

import json

from bastion.drafters.dflash_config import DFlashConfig, geometry, not_described

KIND = "dflash"


def is_speculators_dflash(config: dict) -> bool:
    """Whether a parsed config.json is of this format and kind."""
    return config.get("speculators_model_type") == KIND


def config_from_speculators(text: str) -> DFlashConfig:
    """Read a `config.json` of speculators; UserError when it is not a DFlash drafter that can run here."""
    try:
        raw = json.loads(text)
        layers = raw["transformer_layer_config"]
        shape = geometry(layers)
        drafted = int(raw.get("draft_vocab_size") or shape["vocab_size"])
        width = raw.get("target_hidden_size")
        config = DFlashConfig(
            **shape,
            block_size=int(raw["block_size"]),
            mask_token_id=int(raw["mask_token_id"]),
            target_layer_ids=tuple(int(index) - 1 for index in raw["aux_hidden_state_layer_ids"]),
            num_target_layers=0,
            causal=False if raw.get("sliding_window_non_causal") else None,
            window_from_anchor=True,
            sample_from_anchor=bool(raw.get("sample_from_anchor", False)),
            target_hidden_size=None if width in (None, shape["hidden_size"]) else int(width),
            draft_vocab_size=drafted if drafted != shape["vocab_size"] else None,
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise not_described(error) from None
    return config.checked(layers)
