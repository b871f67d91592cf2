"""Which folders hold a language model that drafts, and what of it the target lends."""

from __future__ import annotations

SHARED = "from_target"
"""Key of config.json that lists the parts which are the target's and not in the folder."""
SHARED_PARTS = ["embed_tokens", "lm_head"]
_OTHER_DRAFTERS = ("dflash_config", "speculators_model_type", "draft_vocab_size", "eagle_config")


def is_small_lm(config: dict) -> bool:
    """Whether a parsed config.json is that of a causal language model and of no other kind of drafter."""
    names = config.get("architectures")
    return isinstance(names, list) and any(str(name).endswith("ForCausalLM") for name in names) \
        and not any(key in config for key in _OTHER_DRAFTERS)
