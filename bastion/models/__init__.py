"""Pairs: a target, its drafter and tokenizer; presets, fetching and loading.

Names are imported on first use, so that fetching and listing presets need no torch.
"""

import os
from importlib import import_module

# libgomp's idle threads spin by default: beside any other busy process on a small machine that
# makes every kernel wait for a whole time slice (3.6 s a token instead of 0.35 s, measured on two
# busy cores). The variable counts only when it is set before torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

_HOME = {
    "PRESETS": "presets",
    "Preset": "presets",
    "KVCache": "cache",
    "Pair": "pair",
    "Target": "target",
    "Tokenizer": "tokenizer",
    "load_pair": "pair",
    "register_drafter": "registry",
}
__all__ = sorted(_HOME)


def __getattr__(name: str):
    if name in _HOME:
        return getattr(import_module(f"bastion.models.{_HOME[name]}"), name)
    raise AttributeError(f"module 'bastion.models' has no attribute {name!r}")
