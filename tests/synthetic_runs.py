"""Step records made by hand for tests: seeded, consistent, with every part of a trace.

The drafter and the target are random numbers, so no figure in these runs means anything; their
shapes, indices and sums are those of a real decode. Best-first growth is written out here in
its slowest, plainest form, independent of `bastion.trees`.
"""

from __future__ import annotations

import numpy as np

from bastion.step import GrowthLog, StepRecord, StepSeconds, StepTrace

VOCABULARY_SIZE = 97
NO_FLOATS = np.zeros(0, np.float32)


def text_of(ids) -> list[str]:
    """A made-up vocabulary: some ids with a leading space, some half characters, some tricky."""
    special = {3: "\n", 4: "\t", 5: "\u202e", 6: "<img src=x onerror=alert(1)>", 7: "\udcf0\udc9f"}
    return [special.get(int(i), (" " if i % 2 else "") + f"w{int(i)}") for i in ids]


def decode(ids) -> str:
    return "".join(text_of(ids)).encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def make_prefill(seed: int = 0, prompt_tokens: int = 12, token: int | None = None) -> StepRecord:
    """Record 0: an empty tree that emits the first token, behind the prompt of `make_info`."""
    rng = np.random.default_rng(seed)
    first = int(rng.integers(VOCABULARY_SIZE)) if token is None else token
    nothing = np.zeros(0, np.int64)
    return StepRecord(
        index=0, kind="prefill", emitted=[first], context=prompt_tokens - 1,
        root=9 + prompt_tokens, token_ids=nothing, parents=nothing, depths=nothing,
        path_log_probs=np.zeros(0), accepted=nothing, bonus=first, surrogate=1.0,
        stop_reason="prefill",
        seconds=StepSeconds(verify=float(rng.uniform(0.05, 0.1)), commit=1e-4),
        top2_gaps=np.array([rng.uniform(0, 3)], np.float32))


def make_step(index: int = 1, seed: int = 0, nodes: int = 16, depth: int = 7, choices: int = 8,
              beyond: int = 8, context: int = 12, root: int = 1, emitted: int | None = None,
              accepted_depth: int | None = None, trace: bool = True, priced: bool = True,
              target_choices: int = 5) -> StepRecord:
    """One decode step of a best-first tree of `nodes` nodes.

    `accepted_depth` drafted nodes are accepted (as deep as the tree goes at most; drawn when
    None), `emitted` cuts the output short, `beyond` pops are logged past the stop, `priced`
    gives gains, prices and predictions as a latency model would.
    """
    rng = np.random.default_rng([seed, index])
    ids, log_probs = make_marginals(rng, depth, choices)
    pops = _pops(ids, log_probs, nodes - 1 + beyond)
    bought = pops[:nodes - 1]
    n = len(bought) + 1
    token_ids = np.array([root] + [p["token"] for p in bought], np.int64)
    parents = np.array([-1] + [p["parent"] for p in bought], np.int64)
    depths = np.array([0] + [p["depth"] for p in bought], np.int64)
    path = np.array([0.0] + [p["path"] for p in bought])
    wanted = int(rng.integers(0, depth + 1)) if accepted_depth is None else accepted_depth
    accepted = _walk(rng, parents, depths, wanted)
    bonus = int(rng.integers(VOCABULARY_SIZE))
    output = [int(token) for token in token_ids[accepted[1:]]] + [bonus]
    output = output if emitted is None else output[:emitted]
    predicted = 0.05 + 0.002 * np.arange(1, n + beyond + 1) ** 1.2
    gains, prices = _gains_and_prices(pops, predicted) if priced else (
        np.full(len(pops), np.nan), np.full(len(pops), np.nan))
    growth = GrowthLog(
        token_ids=np.array([p["token"] for p in pops], np.int64),
        parents=np.array([p["parent"] for p in pops], np.int64),
        depths=np.array([p["depth"] for p in pops], np.int64),
        ranks=np.array([p["rank"] for p in pops], np.int64),
        path_log_probs=np.array([p["path"] for p in pops], np.float64),
        gains=gains, prices=prices,
        bought=np.arange(len(pops)) < n - 1, dropped=np.zeros(len(pops), bool))
    target = np.log(rng.uniform(1e-4, 1, n)).astype(np.float32)
    target[0] = np.nan
    return StepRecord(
        index=index, kind="decode", emitted=output, context=context, root=root,
        token_ids=token_ids, parents=parents, depths=depths, path_log_probs=path,
        accepted=accepted, bonus=bonus, surrogate=float(np.exp(path).sum()),
        stop_reason="price" if priced else "fixed budget",
        seconds=StepSeconds(*(float(x) for x in rng.uniform(0.001, 0.05, 4))),
        top2_gaps=rng.uniform(0, 3, len(output)).astype(np.float32),
        predicted_verify_seconds=float(predicted[n - 1]) if priced else None,
        trace=StepTrace(
            marginal_token_ids=ids, marginal_log_probs=log_probs, target_log_probs=target,
            target_top_ids=rng.integers(0, VOCABULARY_SIZE, (n, target_choices)),
            target_top_log_probs=-np.sort(rng.exponential(1, (n, target_choices)))
            .astype(np.float32),
            growth=growth, predicted_seconds=predicted if priced else np.zeros(0),
            predicted_draft_seconds=0.01 if priced else None,
            predicted_other_seconds=0.002 if priced else None) if trace else None)


def make_run(steps: int = 6, seed: int = 0, **options) -> list[StepRecord]:
    """A prefill and `steps` decode steps whose roots and contexts follow on from one another."""
    records = [make_prefill(seed)]
    context = 12
    for index in range(1, steps + 1):
        record = make_step(index, seed, context=context, root=records[-1].emitted[-1], **options)
        context += len(record.accepted)
        records.append(record)
    return records


def make_marginals(rng: np.random.Generator, depth: int, choices: int):
    """Ids int64 [depth, choices] and log-probs float32, each row sorted, mass left over."""
    logits = np.sort(rng.normal(0, 2, (depth, choices)))[:, ::-1]
    probs = np.exp(logits) / (np.exp(logits).sum(1, keepdims=True) * rng.uniform(1.05, 1.5))
    ids = np.stack([rng.permutation(VOCABULARY_SIZE)[:choices] for _ in range(depth)])
    return ids.astype(np.int64), np.log(probs).astype(np.float32)


def make_info(**changes) -> dict:
    """What a caller of `RunStore.create` knows before the first step."""
    return {
        "title": "Sheep", "prompt": "How many sheep?", "prompt_ids": list(range(10, 22)),
        "pair": "tiny", "method": "bastion", "device": "cpu", "dtype": "float32",
        "sampling": {"temperature": 0.0, "top_p": 1.0, "top_k": 0, "max_new_tokens": 64,
                     "stop_token_ids": [2], "seed": 0},
        "versions": {"bastion": "0.1.0"}, **changes}


def same_step(left: StepRecord, right: StepRecord) -> bool:
    """Equal field by field, arrays in dtype, shape and value, NaN equal to NaN."""
    return _same(left, right)


def _same(left, right) -> bool:
    if isinstance(left, np.ndarray) or isinstance(right, np.ndarray):
        left, right = np.asarray(left), np.asarray(right)
        return left.dtype == right.dtype and left.shape == right.shape and \
            np.array_equal(left, right, equal_nan=left.dtype.kind == "f")
    if hasattr(left, "__slots__") and type(left) is type(right):
        return all(_same(getattr(left, name), getattr(right, name)) for name in left.__slots__)
    if isinstance(left, float) and isinstance(right, float):
        return left == right or (left != left and right != right)
    return type(left) is type(right) and left == right


def _pops(ids: np.ndarray, log_probs: np.ndarray, count: int) -> list[dict]:
    """Best-first by path log-prob over all candidates, the plainest way: scan, take the best."""
    depth, choices = ids.shape
    open_ = [dict(parent=0, depth=1, rank=0, path=float(log_probs[0, 0]), base=0.0)] if depth else []
    pops: list[dict] = []
    while open_ and len(pops) < count:
        best = max(open_, key=lambda candidate: candidate["path"])
        open_.remove(best)
        best["token"] = int(ids[best["depth"] - 1, best["rank"]])
        pops.append(best)
        if best["depth"] < depth:
            open_.append(dict(parent=len(pops), depth=best["depth"] + 1, rank=0,
                              path=best["path"] + float(log_probs[best["depth"], 0]),
                              base=best["path"]))
        if best["rank"] + 1 < choices:
            open_.append(dict(parent=best["parent"], depth=best["depth"], rank=best["rank"] + 1,
                              path=best["base"] + float(log_probs[best["depth"] - 1, best["rank"] + 1]),
                              base=best["base"]))
    return pops


def _gains_and_prices(pops: list[dict], predicted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both sides of the stop rule at n nodes: p (T_draft + T_other + T_verify(n)) and
    S(n) (T_verify(n + 1) - T_verify(n))."""
    p = np.exp([pop["path"] for pop in pops])
    surrogate = 1 + np.concatenate([[0.0], np.cumsum(p)[:-1]]) if len(p) else np.zeros(0)
    verify = predicted[:len(p)]
    return p * (0.012 + verify), surrogate * np.diff(predicted[:len(p) + 1])


def _walk(rng: np.random.Generator, parents: np.ndarray, depths: np.ndarray, wanted: int):
    """A path from the root to some node of depth `wanted`, or of the deepest there is."""
    reach = min(wanted, int(depths.max()))
    node = int(rng.choice(np.flatnonzero(depths == reach)))
    path = []
    while node >= 0:
        path.append(node)
        node = int(parents[node])
    return np.array(path[::-1], np.int64)
