"""Pairs: a target, its drafter and tokenizer; presets, fetching and loading.

Names are imported on first use, so that fetching and listing presets need no torch.
"""

from importlib import import_module

_HOME = {
    "PRESETS": "presets",
    "Preset": "presets",
    "KVCache": "cache",
    "Pair": "pair",
    "Target": "target",
    "Tokenizer": "tokenizer",
    "load_pair": "pair",
    "memory_needed": "memory",
    "register_drafter": "registry",
}
__all__ = sorted(_HOME)


def __getattr__(name: str):
    if name in _HOME:
        return getattr(import_module(f"bastion.models.{_HOME[name]}"), name)
    raise AttributeError(f"module 'bastion.models' has no attribute {name!r}")
