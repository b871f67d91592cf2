"""Drafters. Importing this package makes their loaders known; a new drafter is one file and one line here."""

from bastion.drafters import dflash_drafter, eagle3_drafter, small_lm_loading
from bastion.models.pair import load_pair
from bastion.models.registry import register_drafter

register_drafter(dflash_drafter.LOADER)
register_drafter(dflash_drafter.SPECULATORS_LOADER)
register_drafter(eagle3_drafter.LOADER)
register_drafter(small_lm_loading.LOADER)  # last: it takes any causal language model

__all__ = ["load_pair"]
