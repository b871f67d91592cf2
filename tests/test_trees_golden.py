"""Trees against the published builders, node by node, from the log-probs they searched."""

import hashlib
import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from bastion.latency import PUBLISHED_PEAKS, CalibratedRoofline, ModelShape
from bastion.trees import AdaptiveBudget, DraftMarginals, DraftTree, FixedBudget, grow_best_first
from tests.golden import golden

BASTION = json.loads(golden("bastion_trees.json").read_text())
BASTION_TOPK = load_file(golden("bastion_trees_topk.safetensors"))
DDTREE = json.loads(golden("ddtree_trees.json").read_text())
DDTREE_TOPK = load_file(golden("ddtree_trees_topk.safetensors"))
SPECS = json.loads(golden("roofline.json").read_text())["model_specs"]
STOP_REASONS = {"marginal_rule": "price", "max_tree_size": "max nodes", "heap_exhausted": "exhausted"}


def shape_of(name: str) -> ModelShape:
    spec = SPECS[name]
    return ModelShape(*(spec[key] for key in ("L", "h", "n_q", "n_kv", "d", "h_ffn", "V")))


def mask_digest(tree: DraftTree) -> str:
    return hashlib.sha256(tree.ancestor_mask().astype(np.uint8).tobytes()).hexdigest()


@pytest.mark.parametrize("trace", [False, True])
@pytest.mark.parametrize("case", BASTION["cases"], ids=lambda case: f"{case['id']}-{case['name']}")
def test_adaptive_trees_equal_the_published_ones(case, trace):
    args, name = case["args"], case["id"]
    roofline = CalibratedRoofline(
        shape_of(args["cost_model_name"]),
        PUBLISHED_PEAKS[args["cost_gpu_type"]],
        **BASTION["calibrations"][case["calibration"]],
    )
    budget = AdaptiveBudget(
        lambda nodes: roofline.seconds(nodes, args["context_prefix_length"]),
        draft_seconds=args["draft_latency_s"],
        other_seconds=args["non_verify_latency_s"],
        min_nodes=args["min_tree_size"],
        max_nodes=args["max_tree_size"],
        # The published step of the fixed interval is the minimum size.
        bucket="doubling" if args["adaptive_return_bucket_mode"] == "doubling" else args["min_tree_size"],
    )
    marginals = DraftMarginals(BASTION_TOPK[f"{name}.ids"], BASTION_TOPK[f"{name}.logprobs"])
    tree = grow_best_first(marginals, args["root_token_id"], budget, trace=trace)
    expected, diagnostics = case["tree"], case["diagnostics"]
    assert tree.token_ids.tolist() == expected["token_ids"]
    assert tree.parents.tolist() == expected["parent_indices"]
    assert tree.depths.tolist() == expected["depths"]
    assert mask_digest(tree) == expected["tree_mask_sha256"]
    assert tree.stop_reason == STOP_REASONS[diagnostics["stopped_by"]]
    assert tree.surrogate == pytest.approx(diagnostics["sum_of_path_probs_returned"], rel=1e-12)
    passed = int((tree.growth.bought | tree.growth.dropped).sum())
    assert passed + 1 == diagnostics["nodes_before_bucket_truncation"]


@pytest.mark.parametrize(
    ("set_id", "expected"),
    [(one["id"], tree) for one in DDTREE["sets"] for tree in one["trees"]],
    ids=lambda value: value if isinstance(value, str) else str(value["budget"]),
)
def test_fixed_trees_equal_ddtree(set_id, expected):
    marginals = DraftMarginals(DDTREE_TOPK[f"{set_id}.ids"], DDTREE_TOPK[f"{set_id}.logprobs"])
    # DDTree leaves the root out of its budget and breaks ties by ranks.
    tree = grow_best_first(marginals, 0, FixedBudget(expected["budget"] + 1), ties="ranks")
    assert tree.nodes == expected["size"]
    assert tree.token_ids[1:].tolist() == expected["node_token_ids"]
    assert tree.parents.tolist() == expected["parents"]
    assert tree.depths[1:].tolist() == expected["node_depths"]
    assert mask_digest(tree) == expected["visibility_sha256"]
    assert tree.surrogate - 1 == pytest.approx(expected["sum_of_path_probs_excluding_root"], abs=1e-12)
