"""BASTION Studio: speculative decoding with draft trees, every step on show.

`load_pair` and `decode` are imported on first use: reading recorded runs must not import torch.
"""

import os

# libgomp's idle threads spin by default: beside any other busy process on a small machine that
# makes every kernel wait for a whole time slice (3.6 s a token instead of 0.35 s, measured on two
# busy cores). The variable counts only when it is set before torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

__version__ = "0.1.0"
__all__ = ["decode", "load_pair"]


def __getattr__(name: str):
    if name == "decode":
        from bastion.decoding import decode

        return decode
    if name == "load_pair":
        from bastion.drafters import load_pair  # drafters register their loaders, then models load

        return load_pair
    raise AttributeError(f"module 'bastion' has no attribute {name!r}")
