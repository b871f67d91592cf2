"""One definition for every term, the same words on every page."""

from __future__ import annotations

GLOSSARY: dict[str, str] = {
    "target": "The model whose output is kept.",
    "drafter": "The model that proposes tokens for the target to check.",
    "small language model": "A drafter that is a language model by itself, with the target's tokenizer. It knows the whole path "
                            "above a node, and pays for it with a pass for each level of the tree.",
    "pair": "A target and its drafter together.",
    "block size": "Positions one drafter pass covers: the anchor and the drafted positions after it.",
    "anchor": "The last committed token. It is the root of the tree: node 0, depth 0.",
    "root": "The last committed token. It is the root of the tree: node 0, depth 0.",
    "marginal": "The drafter's next-token probability at one drafted depth, "
                "independent of what stands at the other depths.",
    "path probability": "Product of the marginals along the path from the root; 1 for the root.",
    "surrogate": "S(n), the sum of path probabilities over the n nodes of the tree, root included: "
                 "the drafter's own estimate of the tokens a step will emit.",
    "acceptance length": "Tokens a step emits: its accepted drafted tokens and one bonus token.",
    "tau": "Mean acceptance length over the steps; the prefill is no step.",
    "verify": "One forward pass of the target over the nodes of the tree, "
              "each node seeing only its ancestors.",
    "bonus token": "The target's own token after the last accepted node.",
    "budget": "Nodes to verify, root included.",
    "step time": "Draft, verify and all other time of one step, at its context length.",
    "context": "Tokens before the root, whose keys and values are cached.",
    "depth": "Steps from the root: 1 for the first drafted token.",
    "rank": "Place of the token among the drafter's proposals at its depth; 1 is the most probable.",
    "gain": "What the next node is worth: its path probability times the predicted step time.",
    "price": "What the next node costs: the tokens expected so far times the extra verify time.",
    "accepted": "A drafted token that the target chose too.",
    "rejected": "A drafted token that was verified and that the target did not choose.",
    "drafted, not bought": "A node the search would have taken next, past the stop. "
                           "It was not verified and its cost is outside the step time.",
    "target probability": "The target's probability for this token, given the path that leads to it.",
    "hindsight": "The number of nodes that would have given the most tokens per second in this step, "
                 "knowing what the target accepted.",
    "predicted speed": "S(n) divided by the predicted step time with n nodes.",
    "speedup": "Tokens per second against plain decoding of the same prompt on the same machine.",
    "plain decoding": "One token at a time by the target alone (method ar): the yardstick.",
    "prefill": "The first pass over the prompt. It emits the first token and is no step of tau.",
    "depth limit": "The deepest position the drafter proposes; a step that accepts so far "
                   "might have gone on.",
    "top-2 gap": "Difference between the target's two largest logits where a token was chosen. "
                 "Near zero, rounding decides.",
    "roofline": "A model of time from counts: the longer of what reading the bytes and what doing the "
                "arithmetic takes.",
    "raw roofline": "The roofline with the device's peaks taken at their word, before any fit.",
    "calibrated roofline": "The roofline with a factor and a fixed time for each branch, fitted to what was "
                           "measured on this device.",
    "memory branch": "The time to move weights, keys and values, and activations.",
    "compute branch": "The time to do the arithmetic of the pass.",
    "crossover": "The smallest number of nodes whose arithmetic takes longer than its reading. Up to there "
                 "a further node is nearly free.",
    "calibration": "Verify times measured on a device for a pair, and the roofline fitted to them.",
    "held out": "Measured and kept from the fit, so that the error there is that of a prediction.",
    "RMSE": "Root mean square error: the size of a typical miss, large misses counting more.",
    "drift": "Change of measured against predicted verify time since the calibration.",
    "Pearson": "How closely two numbers lie on one straight line: 1 exactly, 0 not at all, below 0 the wrong way.",
    "Spearman": "Pearson's correlation of the two orders: whether more of one goes with more of the other, on no matter what scale.",
    "bootstrap interval": "Where a number falls in 95 % of many repeats of the analysis, each on steps drawn from the "
                          "measured ones with replacement.",
    "confidence": "The marginal that the drafter recorded for a token.",
    "agreement": "How often the target chose the token, where every token before it had been accepted.",
    "calibration error": "Expected calibration error: tokens are sorted into 15 bins by the drafter's confidence, and the "
                         "gaps between confidence and agreement of the bins are averaged by their counts.",
    "drafter temperature": "A number that the drafter's logits at one depth are divided by: above 1 it is less sure, "
                           "below 1 surer. The target's own temperature is another thing.",
    "doctor": "Undoes faults that are often made, one at a time, on the live pair, and measures tau with and without each. What raises tau "
              "was a fault.",
    "simulated drafter": "One that is right at chosen rates because it is told what the target will say. It tells about the engine and the "
                         "budget, and nothing about a pair.",
    "acceptance rule": "How it is decided which drafted tokens the target keeps, and which token follows them.",
    "not lossless": "The output does not follow the target's distribution: it is not what the target alone would say.",
    "total variation": "How far two distributions are apart: half the sum of all differences in probability. 0 is equal, "
                       "1 is nothing in common.",
    "entropy": "How undecided a distribution is, in nats: 0 when one token is certain. It is the mean of -log p over tokens drawn from it.",
    "stranded tokens": "Tokens that paths cut off by the drafter's depth would have gone on for, estimated.",
}


def define(term: str) -> str:
    """The definition of `term`; KeyError names the term when there is none."""
    return GLOSSARY[term]
