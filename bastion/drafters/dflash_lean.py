"""A lean forward of the DFlash drafter on a CPU, for blocks that see everything.

A draft reads few rows, so it is limited by the reading of its weights and by the number of operators. As the
target's own lean forward does, this one packs the weights once, multiplies context and block by queries, keys and
values in one matmul, has activation, product and residual inside the matmuls, and turns pairs by one table of
complex numbers. The same result as `DFlashDraftModel.forward` but for rounding, which a draft may have: what is
drafted decides how fast the answer comes and never which.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

from bastion.drafters.dflash import EVERYTHING, DFlashCache, DFlashDraftModel, DFlashLayer
from bastion.models.linear_kinds import added, silu_of, times
from bastion.models.quick_layer import stacked
from bastion.models.quick_modules import quicken

TURNED_AT_ONCE = 1024
CONTEXT_AT_ONCE = 24
"""New context rows that go through one matmul with the block; longer contexts (a prompt) are read ahead of it."""


class LeanDFlash:
    """Runs `model`, with whose layers it shares all weights but those of queries, keys and values, which are stacked.

    The numbers of a head that are turned together lie half a head apart; here they are side by side in queries and
    keys alike, because the weights' rows are so ordered, and scores are the same. A cache is therefore for one of the
    two forwards only.
    """

    def __init__(self, model: DFlashDraftModel):
        self.model, config = model, model.config
        self.dim, self.heads, self.key_heads = config.head_dim, config.num_attention_heads, config.num_key_value_heads
        attentions = [layer.self_attn for layer in model.layers]
        side_by_side = torch.arange(self.dim).view(2, -1).t().flatten()
        turning = self.heads + self.key_heads
        rows = torch.arange((turning + self.key_heads) * self.dim).view(-1, self.dim)
        rows[:turning] = rows[:turning, side_by_side]
        self.qkv = torch.nn.ModuleList(_in_order(stacked((at.q_proj, at.k_proj, at.v_proj)), rows.flatten()) for at in attentions)
        quicken(self.qkv)
        self.dtype = model.norm.weight.dtype
        self.sum_dtype = torch.promote_types(self.dtype, torch.float32)
        self.norms: list[torch.Tensor] | None = None
        """For each layer, [heads + kv_heads, d]: what the norms of queries and keys multiply by."""
        if config.qk_norm:
            weights = [[at.q_norm.weight] * self.heads + [at.k_norm.weight] * self.key_heads for at in attentions]
            self.norms = [torch.stack(heads).to(self.sum_dtype)[:, side_by_side].contiguous() for heads in weights]
        self.eps = torch.tensor(config.rms_norm_eps, dtype=self.sum_dtype)
        self.turns = torch.empty(0, self.dim // 2, dtype=torch.promote_types(self.sum_dtype, torch.complex64))
        """complex [positions, head_dim / 2]: the rotation of each pair at each position."""

    def _turn_further(self, positions: int) -> None:
        while len(self.turns) < positions:
            first = len(self.turns)
            numbers = torch.arange(first, first + TURNED_AT_ONCE, dtype=torch.float32)[:, None]
            angles = numbers * self.model.inverse_frequencies.to("cpu")
            more = torch.polar(torch.full_like(angles, self.model.rotary_factor), angles)
            self.turns = torch.cat((self.turns, more.to(self.turns.dtype)))

    def __call__(self, block: torch.Tensor, features: torch.Tensor, cache: DFlashCache) -> torch.Tensor:
        """As the model's forward without a batch: block [B, h], features [c, layers * h] of the context that stands behind
        the cached rows -> [B, h]. Cached rows stand at their own positions."""
        model, kept = self.model, cache.length
        self._turn_further(kept + len(features) + len(block))
        context = model.hidden_norm(model.fc(features))
        if len(context) > CONTEXT_AT_ONCE:
            for index in range(len(model.layers)):
                self._remember(index, self.qkv[index](context), kept, cache)
            kept, context = kept + len(context), context[:0]
        for index, layer in enumerate(model.layers):
            block = self._layer(layer, index, context, block, kept, cache)
        return model.norm(block)

    def _layer(self, layer: DFlashLayer, index: int, context: torch.Tensor, block: torch.Tensor, kept: int, cache: DFlashCache) -> torch.Tensor:
        normed, n, kv, dim = layer.input_layernorm(block), len(block), self.key_heads, self.dim
        qkv = self.qkv[index](torch.cat((context, normed)) if len(context) else normed)
        turned = self._remember(index, qkv, kept, cache)[-n:, : self.heads]
        end = kept + len(qkv)
        # query heads of one key head are rows of one matmul, so that keys and values are read once and in place
        query = turned.view(n, kv, -1, dim).transpose(0, 1).reshape(1, kv, -1, dim).to(self.dtype)
        mixed = F.scaled_dot_product_attention(query, cache.keys[index][:, :, :end], cache.values[index][:, :, :end])
        mixed = mixed.view(kv, n, -1).transpose(0, 1).reshape(n, -1)
        block = added(layer.self_attn.o_proj, mixed, block)
        normed = layer.post_attention_layernorm(block)
        return added(layer.mlp.down_proj, times(layer.mlp.up_proj, normed, silu_of(layer.mlp.gate_proj, normed)), block)

    def _remember(self, index: int, qkv: torch.Tensor, kept: int, cache: DFlashCache) -> torch.Tensor:
        """qkv [m, (heads + 2 kv_heads) * d] of m rows behind `kept` ones: writes keys and values into the cache; returns
        queries and keys as they are multiplied, [m, heads + kv_heads, d]."""
        m, dim, heads, turning = len(qkv), self.dim, self.heads, self.heads + self.key_heads
        qkv = qkv.view(m, -1, dim)
        turned = qkv[:, :turning].to(self.sum_dtype)
        if self.norms is not None:
            length = torch.linalg.vector_norm(turned, dim=-1, keepdim=True)
            turned = turned * self.norms[index]
            turned.mul_(torch.addcmul(self.eps, length, length, value=1 / dim).rsqrt_())
        pairs = torch.view_as_complex(turned.view(m, turning, dim // 2, 2))
        turned = torch.view_as_real(pairs * self.turns[kept : kept + m, None]).view(m, turning, dim)
        cache.keys[index][0, :, kept : kept + m] = turned[:, heads:].transpose(0, 1)
        cache.values[index][0, :, kept : kept + m] = qkv[:, turning:].transpose(0, 1)
        return turned


def _in_order(linear: torch.nn.Linear, rows: torch.Tensor) -> torch.nn.Linear:
    """The same layer with its outputs in the order of `rows`."""
    linear.weight = torch.nn.Parameter(linear.weight[rows], requires_grad=False)
    if linear.bias is not None:
        linear.bias = torch.nn.Parameter(linear.bias[rows], requires_grad=False)
    return linear


def lean_dflash(model: DFlashDraftModel) -> LeanDFlash | None:
    """The lean forward of a drafter whose linear layers are plain still; None for one that it does not compute."""
    config = model.config
    on_cpu = model.norm.weight.device.type == "cpu"
    if not on_cpu or any(rule != EVERYTHING for rule in model.attends) or config.head_dim % 2:
        return None
    return LeanDFlash(model)
