"""Where two outputs of one prompt part."""

from __future__ import annotations

from collections.abc import Sequence


def first_difference(left: Sequence[int], right: Sequence[int]) -> int | None:
    """The first position where two outputs part; None when their tokens are equal."""
    shared = min(len(left), len(right))
    place = next((i for i in range(shared) if left[i] != right[i]), shared)
    return None if place == len(left) == len(right) else place
