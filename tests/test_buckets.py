"""Fixed shapes: trees padded to buckets over a cache that stays in place give what the plain forward gives."""

from __future__ import annotations

import gc
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bastion import decode
from bastion.decoding.adaptive import Bastion
from bastion.decoding.methods import resolve_method
from bastion.decoding.calibrate import _random_tree, calibrate
from bastion.drafters.dflash import DFlashConfig, DFlashDraftModel
from bastion.drafters.dflash_drafter import DFlashDrafter
from bastion.drafters.dflash_static import StaticDFlashSession
from bastion.errors import UserError
from bastion.latency import Calibration, OnlineEstimator, ProbeGrid, build_estimator
from bastion.latency.buckets import Stair, bucket_of, buckets_to, stair
from bastion.models import static_cache
from bastion.models.static_cache import CacheShape, StorePool, span_of
from bastion.models.static_forward import ancestors, static_model
from bastion.models.static_target import StaticTarget, target_for
from bastion.models.target import causal_mask
from bastion.trees import AdaptiveBudget, DraftMarginals, grow_best_first
from tests.static_pairs import RememberingMaker, static_pair
from tests.tiny_pair import tiny_calibration, tiny_pair
from tests.tiny_targets import FAMILIES, VOCABULARY, family_pair

SERVED = [name for name in FAMILIES if "gemma" not in name]
METHODS = ["ar", "dflash", "ddtree:9", "bastion", "bastion+ngram", "bastion@ema"]


# -- sizes ----------------------------------------------------------------------------------------


def test_buckets_double_and_then_have_one_half_way():
    assert buckets_to(500) == (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512)
    assert [bucket_of(n) for n in (1, 3, 64, 65, 97, 129, 1024, 1025)] == [1, 4, 64, 96, 128, 192, 1024, 1536]


@given(st.integers(1, 5000))
def test_a_bucket_is_the_least_that_holds_the_tree(nodes):
    sizes = buckets_to(nodes)
    assert sizes[-1] == bucket_of(nodes) >= nodes and (len(sizes) == 1 or sizes[-2] < nodes)


@given(st.integers(1, 100_000))
def test_a_span_holds_the_rows_and_wastes_at_most_half(rows):
    span = span_of(rows)
    assert span >= rows and span % 8 == 0 and (span <= static_cache.LEAST_SPAN or span <= 1.5 * rows)


# -- what the stop makes of them ------------------------------------------------------------------


class Line:
    def seconds(self, nodes, context):
        return 1.0 + 0.01 * nodes + 0.0 * context


def test_a_tree_costs_what_its_bucket_costs():
    found = stair(Line(), (1, 2, 4, 8))
    assert found.seconds(3, 100) == 1.04 and found.seconds(8, 100) == 1.08
    assert np.allclose(found.seconds(np.array([1, 2, 5, 9, 65]), 7), [1.01, 1.02, 1.08, 1.16, 1.96])
    assert isinstance(found.padded(3), int) and found.look_past == 4
    assert not isinstance(found, OnlineEstimator)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0.0, 0.1))
def test_under_a_stair_growth_fills_its_bucket_and_looks_over_the_next(seed, slope):
    """No size within reach has a greater predicted speed, and the size reached is a bucket's or all there is."""
    random = np.random.default_rng(seed)
    scores = -np.sort(random.exponential(2.0, size=(6, 20)), axis=1)
    log_probs = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    marginals = DraftMarginals(np.tile(np.arange(20), (6, 1)), log_probs)
    steps = Stair(type("Priced", (), {"seconds": lambda self, nodes, context: 1.0 + slope * nodes})(), buckets_to(128))
    budget = AdaptiveBudget(lambda n: steps.seconds(n, 0), 0.3, 0.1, max_nodes=128, look_past=steps.look_past)
    tree = grow_best_first(marginals, 0, budget, trace=True)
    assert tree.nodes in buckets_to(128) or tree.stop_reason == "exhausted"
    surrogates = 1.0 + np.concatenate(([0.0], np.cumsum(np.exp(tree.growth.path_log_probs))))
    reach = [n for n in range(1, min(len(surrogates), 2 * tree.nodes) + 1) if n <= min(128, tree.nodes + steps.look_past)]
    speed = {n: surrogates[n - 1] / (0.4 + steps.seconds(n, 0)) for n in reach}
    assert max(speed.values()) <= speed[tree.nodes] * (1 + 1e-12)


@pytest.mark.parametrize("seed", range(6))
def test_a_stop_that_looks_far_ahead_asks_about_few_sizes_and_stops_where_it_would_step_by_step(seed, monkeypatch):
    """The estimator hears of buckets alone, and of each once or twice; finding the paths in stages gives the same tree."""
    random = np.random.default_rng(seed)
    scores = -np.sort(random.exponential(2.0, size=(9, 60)), axis=1)
    marginals = DraftMarginals(np.tile(np.arange(60), (9, 1)), scores - np.log(np.exp(scores).sum(axis=1, keepdims=True)))
    asked = []

    class Priced:
        def seconds(self, nodes, context):
            asked.append(nodes)
            return 1.0 + 3e-4 * (seed + 1) * nodes

    steps = Stair(Priced(), buckets_to(512))
    budget = AdaptiveBudget(lambda n: steps.seconds(n, 0), 0.3, 0.1, max_nodes=512, look_past=steps.look_past)
    at_once = grow_best_first(marginals, 0, budget)
    assert steps.look_past == 128 and len(asked) <= 2 and all(set(sizes) <= set(buckets_to(4096)) for sizes in asked)
    monkeypatch.setattr("bastion.trees.stopping.LOOKS", (16, 10**6, 10**7))
    in_stages = grow_best_first(marginals, 0, budget)
    assert at_once.nodes in buckets_to(512) and at_once.stop_reason == in_stages.stop_reason
    assert np.array_equal(at_once.token_ids, in_stages.token_ids) and np.array_equal(at_once.parents, in_stages.parents)


def test_sizes_beyond_the_last_bucket_go_on_as_all_buckets_do():
    found = stair(Line(), (1, 2, 4, 8))
    sizes = np.arange(1, 700)
    padded = [next((bucket for bucket in (1, 2, 4, 8) if bucket >= size), bucket_of(int(size))) for size in sizes]
    assert found.padded(sizes).tolist() == padded and found.padded(600) == 768
    assert np.allclose(found.seconds(sizes, 3), [found.seconds(int(size), 3) for size in sizes])
    assert found.seconds(sizes.reshape(3, -1), 3).shape == (3, 233)
    constant = stair(type("Flat", (), {"seconds": lambda self, nodes, context: 2.0})(), (1, 2, 4))
    assert constant.seconds(np.array([1, 9]), 0).tolist() == [2.0, 2.0]


def test_a_calibration_keeps_its_buckets_and_every_estimator_is_a_stair_then():
    pair = static_pair(tiny_pair(vocab=11))
    grid = ProbeGrid((1, 3, 4, 8, 13), (4, 16), 1, 1.0)
    made = calibrate(pair, grid=grid)
    assert made.buckets == (1, 4, 8, 16) and {nodes for nodes, _, _ in made.probes} == {1, 4, 8, 16}
    again = Calibration.load(made.path)
    assert again == made and again.id == made.id
    for name in ("roofline", "table", "convex", "ema", "roofline-ema"):
        predicted = build_estimator(name, again)
        assert predicted.seconds(5, 10) == predicted.seconds(8, 10) and predicted.look_past == 8
    learning = build_estimator("ema", again)
    assert isinstance(learning, OnlineEstimator)
    before = learning.seconds(8, 10)
    learning.observe(5, 10, 3 * before)
    assert learning.seconds(7, 10) == learning.seconds(8, 10) > before
    method = Bastion().calibrated(again)
    assert method.budget(10).look_past == 8
    plain = tiny_calibration(pair)
    assert "buckets" not in plain.to_json() and not hasattr(build_estimator("roofline", plain), "look_past")
    with pytest.raises(UserError, match="buckets"):
        Calibration.from_json(made.to_json() | {"buckets": [4, 1]})


# -- the forward ----------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 1000), min_size=0, max_size=40))
def test_ancestors_by_doubling_are_those_of_the_tree(draws):
    parents = np.array([-1] + [draw % (place + 1) for place, draw in enumerate(draws)])
    expected = np.eye(len(parents), dtype=bool)
    for node in range(1, len(parents)):
        expected[node] |= expected[parents[node]]
    assert (ancestors(torch.from_numpy(parents)).numpy() == expected).all()


@pytest.mark.parametrize("family", SERVED)
def test_padded_verification_over_steps_is_the_dynamic_one(family):
    """Logits, features and what is committed, step by step, in float32 to 1e-4 of the largest value."""
    plain = family_pair(family, torch.float32)
    static = static_pair(plain, RememberingMaker())
    for pair in (plain, static):
        pair.target.watch((0, 2, 3, -1))
    random = np.random.default_rng(3)
    ids = random.integers(VOCABULARY, size=21).tolist()
    caches = [pair.target.new_cache(200) for pair in (plain, static)]
    outputs = [pair.target.prefill(ids, cache) for pair, cache in zip((plain, static), caches)]
    for nodes in (1, 2, 3, 5, 9, 30, 5, 2, 0):
        for name in ("logits", "features"):
            left, right = (getattr(output, name) for output in outputs)
            assert left.shape == right.shape
            torch.testing.assert_close(right, left, atol=1e-4 * float(left.abs().max()), rtol=0)
        assert torch.equal(outputs[0].logits.argmax(-1), outputs[1].logits.argmax(-1))
        if not nodes:
            break
        tree = _random_tree(random, VOCABULARY, nodes)
        path = tree.path(int(random.integers(tree.nodes)))
        for number, (pair, cache) in enumerate(zip((plain, static), caches)):
            outputs[number] = pair.target.verify(pair.target.lay_out(tree, cache.length), cache)
            cache.commit(len(path) if path[-1] == len(path) - 1 else torch.from_numpy(path))
            pair.target.settle()
        length = caches[0].length
        assert length == caches[1].length
        for left, right in zip(caches[0].layers, caches[1].layers, strict=True):
            # keys by their products with one another, since a forward may order a head's dimensions as it likes
            keys = [layer.keys[:, :, :length] for layer in (left, right)]
            scores = [key @ key.transpose(-1, -2) for key in keys]
            torch.testing.assert_close(scores[1], scores[0], atol=1e-4 * float(scores[0].max()), rtol=0)
            torch.testing.assert_close(right.values[:, :, :length], left.values[:, :, :length], atol=1e-4, rtol=1e-4)
    assert any(work.replayed for work in static.target.works.maker.made)


def test_what_the_static_forward_does_not_compute_stays_with_the_plain_one():
    assert static_model(family_pair("gemma3", torch.float32).target.model, None) is None
    model = tiny_pair().target.model
    model.get_decoder().rotary_emb.rope_type = "dynamic"
    assert static_model(model, None) is None


# -- decoding -------------------------------------------------------------------------------------

PLAIN = tiny_pair(vocab=11, block=5, positions=400)


@pytest.mark.parametrize("temperature, graphs, methods", [
    (0.0, True, METHODS), (1.0, True, ["ddtree:9", "bastion+ngram"]), (0.0, False, ["bastion+ngram"])])
def test_decodes_in_fixed_shapes_emit_the_same_text(temperature, graphs, methods):
    maker = RememberingMaker() if graphs else None
    static = static_pair(PLAIN, maker)
    calibration = tiny_calibration(PLAIN)
    for method in methods:
        if method.startswith("bastion"):
            method = resolve_method(method).calibrated(calibration)
        texts = []
        for pair in (PLAIN, static):
            steps = list(decode(pair, [1, 2, 3, 4, 1, 2], method, temperature, max_new_tokens=24, seed=5, stop_token_ids=()))
            texts.append([token for step in steps for token in step.emitted])
            if temperature == 0:  # the trees, too, are the same: the drafter says the same
                texts[-1].append([step.nodes for step in steps])
        assert texts[0] == texts[1]
    assert maker is None or sum(work.replayed for work in maker.made) > 20


def test_two_decodes_at_once_do_not_meet():
    static = static_pair(PLAIN, RememberingMaker())
    alone = [[token for step in decode(static, prompt, "ddtree:6", max_new_tokens=16, stop_token_ids=()) for token in step.emitted]
             for prompt in ([1, 2, 3], [7, 5])]
    together: list[list[int]] = [[], []]
    runs = [decode(static, prompt, "ddtree:6", max_new_tokens=16, stop_token_ids=()) for prompt in ([1, 2, 3], [7, 5])]
    for _ in range(17):
        for run, text in zip(runs, together):
            step = next(run, None)
            text += step.emitted if step else []
    assert together == alone


VARIANTS = [
    dict(),
    dict(num_hidden_layers=2, layer_types=("sliding_attention", "full_attention"), sliding_window=4),
    dict(num_hidden_layers=2, layer_types=("sliding_attention", "full_attention"), sliding_window=6, causal=False, window_from_anchor=True),
    dict(causal=True, sample_from_anchor=True, embedding_scale=3.0, logit_scale=0.5, logit_softcap=4.0, qk_norm=False),
]


@pytest.mark.parametrize("variant", VARIANTS)
def test_drafts_in_fixed_shapes_are_the_models_own(variant):
    shape = dict(hidden_size=32, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2, head_dim=8, intermediate_size=48,
                 vocab_size=11, block_size=5, mask_token_id=0, target_layer_ids=(0, 2), num_target_layers=3) | variant
    torch.manual_seed(2)
    model = DFlashDraftModel(DFlashConfig(**shape)).to(torch.float64).eval().requires_grad_(False)
    depth = shape["block_size"] - 1 + shape.get("sample_from_anchor", False)
    temperatures = tuple(np.linspace(0.7, 1.4, depth))
    static = static_pair(PLAIN, RememberingMaker()).target
    sessions = [DFlashDrafter(model, target, temperatures).start(300) for target in (PLAIN.target, static)]
    assert isinstance(sessions[1], StaticDFlashSession)
    for count in (40, 3, 1, 5, 2, 17, 1):
        features = torch.randn(1, count, 64, dtype=torch.float64)
        (ids, log_probs), (static_ids, static_log_probs) = (session.draft(features, count % 11, 6) for session in sessions)
        static.settle()
        assert np.array_equal(ids, static_ids)
        np.testing.assert_allclose(static_log_probs, log_probs, atol=1e-6)
        assert sessions[0].cache.length == sessions[1].cache.length
    assert sum(work.replayed for work in static.works.maker.made) >= 4


# -- memory ---------------------------------------------------------------------------------------


def test_stores_come_back_with_what_was_captured_over_them():
    target = static_pair(PLAIN, RememberingMaker()).target
    prompts = [[1, 2, 3], [4, 5, 6]]
    for number, prompt in enumerate(prompts):
        cache = target.new_cache(100)
        target.prefill(prompt, cache)
        target.verify(target.lay_out(_random_tree(np.random.default_rng(0), 11, 3), 3), cache)
        target.settle()
        assert len(target.works.maker.made) == 1 and target.works.maker.made[0].replayed == number
        del cache
        gc.collect()
        assert len(target.pool.free) == 1


def test_a_cache_that_becomes_too_small_grows_and_is_captured_anew():
    target = static_pair(PLAIN, RememberingMaker()).target
    wide = target.new_cache(600)
    ids = np.random.default_rng(0).integers(11, size=300).tolist()
    tree = _random_tree(np.random.default_rng(1), 11, 7)
    outputs = []
    for cache in (wide, target.new_cache(20)):
        target.prefill(ids[:250], cache)
        for start in (250, 275):
            part = torch.tensor(ids[start : start + 25])
            target.forward(part, torch.arange(start, start + 25), causal_mask(25, target.device), cache)
            cache.commit(25)
            found = target.verify(target.lay_out(tree, cache.length), cache)
            target.settle()
        outputs.append((found.logits.clone(), cache.capacity))
    torch.testing.assert_close(outputs[1][0], outputs[0][0], atol=1e-9, rtol=0)
    assert outputs[1][1] == 384 and outputs[0][1] == 768


def test_no_memory_for_a_cache_is_one_sentence_with_the_numbers():
    shape = CacheShape(layers=36, kv_heads=8, head_dim=128, dtype=torch.bfloat16, device=torch.device("cpu"))
    asked = []

    def full(size, **_):
        asked.append(size[3])
        raise torch.OutOfMemoryError

    with pytest.raises(UserError, match=r"KV cache for 40000 tokens needs 5.9 GB .* fewer new tokens"):
        StorePool(shape, full).take(40_000)
    assert min(asked) == 40_000 + static_cache.SPARE_ROWS and math.isclose(shape.bytes(40_000), 40_000 * 147_456)


def test_a_shape_that_cannot_be_captured_goes_on_operator_by_operator(caplog):
    class Full:
        def capture(self, work):
            raise torch.OutOfMemoryError

    static, plain = static_pair(PLAIN, Full()), static_pair(PLAIN)
    texts = [[step.emitted for step in decode(pair, [1, 2], "dflash", max_new_tokens=12, stop_token_ids=())] for pair in (static, plain)]
    assert texts[0] == texts[1] and "no memory for a graph" in caplog.text
    assert len(caplog.records) <= 4, "each shape is tried once"


def test_only_cuda_takes_fixed_shapes_by_itself():
    assert type(target_for(PLAIN.target.model, "tiny")).__name__ == "Target"
    assert StaticTarget.padded and not PLAIN.target.padded
