"""Tests on which features the drafter reads and on what becomes of its logits: layers, vocabulary maps, temperatures."""

from __future__ import annotations

from bastion.decoding.doctor.drafting import Change, Variant
from bastion.drafters.dflash import build_target_layer_ids
from bastion.models.pair import Pair


def layer_choices(pair: Pair) -> list[tuple[int, ...]]:
    """One lower, one higher, in ascending order, and the published even spacing; those the target has (-1 is its embedding) and the drafter does not read now."""
    now, count = tuple(pair.drafter.feature_layer_ids), pair.target.layers
    moved = [tuple(layer + by for layer in now) for by in (-1, 1)]
    found = [*moved, tuple(sorted(now)), tuple(build_target_layer_ids(count, len(now)))]
    return [ids for ids in dict.fromkeys(found) if ids != now and all(-1 <= layer < count for layer in ids)]


def layers(pair: Pair) -> list[Variant]:
    return [Variant(f"feature layers {', '.join(map(str, ids))}",
                    f"set dflash_config.target_layer_ids to {list(ids)} in the drafter's config.json", Change(layer_ids=ids))
            for ids in layer_choices(pair)]


def vocabulary(pair: Pair) -> list[Variant]:
    size = pair.target.vocab_size
    found = [Variant(f"proposed ids {'plus' if by > 0 else 'minus'} 1",
                     "the map from the drafter's vocabulary to the target's is off by one: convert the checkpoint's d2t again",
                     Change(ids=lambda ids, own, by=by: (ids + by) % size)) for by in (-1, 1)]
    target_ids = pair.drafter.target_ids
    if target_ids is not None:
        found += [
            Variant("vocabulary map as offsets", "d2t holds offsets: the target's id is the drafter's plus d2t of it",
                    Change(ids=lambda ids, own: (own + target_ids[own]) % size)),
            Variant("vocabulary map as ids", "d2t holds the target's ids themselves: do not add the drafter's",
                    Change(ids=lambda ids, own: (target_ids[own] - own) % size)),
        ]
    return found


def temperatures(pair: Pair) -> list[Variant]:
    if (pair.drafter.temperatures == 1).all():
        return []
    return [Variant("no depth temperatures", "delete depth_temperatures from the drafter's growth.json, or fit them again "
                    "(`python -m bastion train` does)", Change(temperatures=(1.0,) * pair.drafter.depth))]
