"""The loop: draft, build, verify, commit. `decode` yields a record after every step."""

from bastion.decoding.calibrate import calibrate
from bastion.decoding.loop import decode
from bastion.decoding.methods import METHODS, Bastion, BestFirst, resolve_method
from bastion.decoding.rules import ACCEPTANCE
from bastion.decoding.sampling import Sampling, SeededDraws
from bastion.decoding.tree_methods import Eagle3

__all__ = ["ACCEPTANCE", "METHODS", "Bastion", "BestFirst", "Eagle3", "Sampling", "SeededDraws", "calibrate", "decode", "resolve_method"]

