"""The loop: draft, build, verify, commit. `decode` yields a record after every step."""

from bastion.decoding.loop import decode
from bastion.decoding.methods import METHODS, Bastion, BestFirst, resolve_method
from bastion.decoding.sampling import Sampling, SeededDraws

__all__ = ["METHODS", "Bastion", "BestFirst", "Sampling", "SeededDraws", "calibrate", "decode", "resolve_method"]


def __getattr__(name: str):
    if name == "calibrate":  # imported on first use: only measuring needs it
        from bastion.decoding.calibrate import calibrate

        return calibrate
    raise AttributeError(f"module 'bastion.decoding' has no attribute {name!r}")
