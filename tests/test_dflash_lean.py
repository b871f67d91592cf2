"""The lean forward of the DFlash drafter against the plain one."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from bastion.drafters.dflash import DFlashCache, DFlashConfig, DFlashDraftModel
from bastion.drafters.dflash_lean import CONTEXT_AT_ONCE, lean_dflash
from bastion.models.quick_modules import quicken

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 32.0, "beta_slow": 1.0}
BASE = DFlashConfig(
    hidden_size=32, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2, head_dim=8, intermediate_size=48,
    vocab_size=64, block_size=5, mask_token_id=0, target_layer_ids=(0, 2), num_target_layers=4,
)


def drafter_model(**changes) -> DFlashDraftModel:
    torch.manual_seed(3)
    model = DFlashDraftModel(replace(BASE, **changes)).eval().requires_grad_(False)
    for parameter in model.parameters():
        parameter.copy_(torch.randn_like(parameter) * 0.3)  # norms and biases too
    return model


@torch.inference_mode()
@pytest.mark.parametrize("qk_norm", [True, False])
@pytest.mark.parametrize("attention_bias", [True, False])
@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-4), (torch.bfloat16, 6e-2)])
def test_a_sequence_of_drafts_is_that_of_the_plain_forward(qk_norm, attention_bias, dtype, tolerance):
    """First a context longer than one matmul takes with the block, then a few tokens at a time."""
    plain = drafter_model(qk_norm=qk_norm, attention_bias=attention_bias)
    model = drafter_model(qk_norm=qk_norm, attention_bias=attention_bias).to(dtype)
    plain.load_state_dict(model.state_dict())  # the same rounded weights
    lean = lean_dflash(model)
    quicken(model)
    contexts = (CONTEXT_AT_ONCE + 7, 1, 5, 3, CONTEXT_AT_ONCE)
    caches = [DFlashCache(plain.config, sum(contexts) + 5, like=like.fc.weight if like is plain else torch.empty(0, dtype=dtype))
              for like in (plain, model)]
    for count in contexts:
        block, features = torch.randn(5, 32).to(dtype), torch.randn(count, 64).to(dtype)
        start = caches[0].length
        wanted = plain(block[None].float(), features[None].float(), torch.arange(start, start + count + 5)[None], caches[0])[0]
        found = lean(block, features, caches[1])
        for cache in caches:
            cache.crop(start + count)
        torch.testing.assert_close(found.float(), wanted, atol=tolerance * float(wanted.abs().max()), rtol=0)


@torch.inference_mode()
def test_scaled_rotations_are_those_of_the_plain_forward():
    model = drafter_model(rope_scaling=YARN)
    lean, block, features = lean_dflash(model), torch.randn(5, 32), torch.randn(9, 64)
    wanted = model(block[None], features[None], torch.arange(14)[None])[0]
    found = lean(block, features, DFlashCache(model.config, 14, like=block))
    np.testing.assert_allclose(found.numpy(), wanted.numpy(), atol=1e-4)


@pytest.mark.parametrize("changes", [
    {"causal": True}, {"layer_types": ("sliding_attention", "full_attention"), "sliding_window": 4},
])
def test_blocks_that_do_not_see_everything_are_left_to_the_plain_forward(changes):
    assert lean_dflash(drafter_model(**changes)) is None
