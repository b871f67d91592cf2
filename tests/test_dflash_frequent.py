"""A head over the frequent ids: the same scores as the whole head gives them, and one sentence for a damaged file."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bastion import decode, load_pair
from bastion.drafters.dflash_frequent import FREQUENT_IDS_FILE, read_frequent_ids
from bastion.errors import UserError
from bastion.models.presets import ASSETS
from tests.tiny_folders import write_drafter, write_target


def test_the_shipped_ids_are_ascending_ids_of_the_default_target():
    ids = read_frequent_ids(ASSETS / "smollm2-135m-dflash", 49152)
    assert len(ids) == 16384
    assert {0, 1, 2} <= set(ids.tolist())


@pytest.mark.parametrize("ids", [[3, 2], [-1, 4], [0, 49152], [[1, 2]], [], [0.5, 1.5], [4, 4]])
def test_what_are_no_ids_is_said(tmp_path, ids):
    np.save(tmp_path / FREQUENT_IDS_FILE, np.array(ids))
    with pytest.raises(UserError, match="ascending ids below 49152"):
        read_frequent_ids(tmp_path, 49152)


def test_a_file_that_is_no_array_is_said(tmp_path):
    (tmp_path / FREQUENT_IDS_FILE).write_bytes(b"nothing")
    with pytest.raises(UserError, match="copy it again or delete it"):
        read_frequent_ids(tmp_path, 49152)


def test_without_the_file_the_whole_head_drafts(tmp_path):
    assert read_frequent_ids(tmp_path, 49152) is None


def test_few_ids_are_drafted_with_the_whole_heads_order_and_the_text_is_the_same(tmp_path):
    target, folder = write_target(tmp_path / "target"), write_drafter(tmp_path / "drafter")
    whole = load_pair(str(target), str(folder), device="cpu", dtype="float32")
    kept = np.array([2, *range(5, 259, 3)])
    np.save(folder / FREQUENT_IDS_FILE, kept)
    few = load_pair(str(target), str(folder), device="cpu", dtype="float32")
    assert few.drafter.speaks_frequent_ids and not whole.drafter.speaks_frequent_ids
    hidden = torch.randn(3, 64, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        torch.testing.assert_close(few.drafter.logits(hidden), whole.drafter.logits(hidden)[:, kept])
    text = [token for record in decode(whole, list(range(3, 40)), "ar", max_new_tokens=40) for token in record.emitted]
    for method in ("dflash", "ddtree:8"):
        records = list(decode(few, list(range(3, 40)), method, max_new_tokens=40))
        assert [token for record in records for token in record.emitted] == text
        assert {int(token) for record in records[1:] for token in record.token_ids[1:]} <= set(kept.tolist())
