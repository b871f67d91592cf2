"""Decode a prompt: draft, build, verify, commit, and a record of every step."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from bastion.decoding.acceptance import EveryNode, Greedy, Visited, walk
from bastion.decoding.adaptive import MARGINALS
from bastion.decoding.clock import StageClock
from bastion.decoding.faithfulness import faithfulness
from bastion.decoding.methods import NO_MARGINALS, Method, resolve_method
from bastion.decoding.rules import AcceptanceRule, proposals_of, resolve_rule, target_rows
from bastion.decoding.sampling import Draws, Sampling, SeededDraws
from bastion.decoding.synthetic import tell
from bastion.decoding.trace import trace_step
from bastion.decoding.tree_methods import drafting_pair
from bastion.drafters.lookup import NgramLookup
from bastion.errors import UserError
from bastion.latency import Calibration, OnlineEstimator, shipped_words
from bastion.models.pair import Pair
from bastion.models.target import TargetOutput
from bastion.models.top_k import best_token, choices, top_k
from bastion.step import StepRecord
from bastion.trees import BeamCandidates, DraftMarginals, DraftTree, grow_sampled

Prompt = str | Sequence[int] | Sequence[dict[str, str]]


def decode(
    pair: Pair,
    messages_or_ids: Prompt,
    method: str | Method = "bastion",
    temperature: float = 0.0,
    top_p: float = 1.0,
    top_k: int = 0,
    max_new_tokens: int = 256,
    stop_token_ids: Iterable[int] | None = None,
    seed: int = 0,
    trace: bool = True,
    *,
    acceptance: str = "walk",
    draws: Draws | None = None,
    on_notice: Callable[[str], None] | None = None,
    on_read: Callable[[int], None] | None = None,
) -> Iterator[StepRecord]:
    """Yield a record of the prefill, then of every step as soon as it is done.

    The prompt is text (one user message), messages, or token ids. Decoding ends with a stop token
    (the pair's own unless given; it is emitted), after `max_new_tokens`, or when the model's
    positions are full. `acceptance` names a rule of `bastion.decoding.ACCEPTANCE`; `draws` replaces the seeded source of randomness; `on_notice` hears of a
    calibration being made; `on_read` hears how many tokens of the prompt have been read, and may
    raise to give up. Everything is checked here, before the first record: UserError.
    """
    method = resolve_method(method)
    sampling = Sampling(temperature, top_p, top_k)
    prompt_ids = encode_prompt(pair, messages_or_ids)
    if isinstance(max_new_tokens, bool) or not isinstance(max_new_tokens, int) or max_new_tokens < 1:
        raise UserError(f"Give max_new_tokens as a whole number of 1 or more, not {max_new_tokens!r}.")
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 1 << 63:
        raise UserError(f"Give seed as a whole number of 0 or more, not {seed!r}.")
    stops = pair.stop_token_ids if stop_token_ids is None else frozenset(
        _checked_ids(pair, stop_token_ids, "stop_token_ids")
    )
    whole, pair = pair, drafting_pair(method, pair)
    if hasattr(method, "with_rates"):
        from bastion.decoding.rates import find_or_make_rates

        method = method.with_rates(method.rates or find_or_make_rates(pair, on_notice), pair.drafter.depth)
    if hasattr(method, "told") and not sampling.greedy:
        raise UserError(f"The method {method.name} simulates a drafter from the target's greedy answer; use it at temperature 0.")
    rule = resolve_rule(acceptance, method, sampling)
    if hasattr(method, "told"):
        method = tell(method, pair, prompt_ids, max_new_tokens, seed, on_notice, lambda tokens: decode(
            pair, prompt_ids, "ar", max_new_tokens=tokens, stop_token_ids=(), trace=False, on_read=on_read))
    calibration = find_or_make_calibration(whole, method, on_notice)  # verifying takes as long, whoever drafts
    if calibration is not None:
        method = method.calibrated(calibration)
        calibration = method.calibration or calibration
    run = _Decoding(
        pair, prompt_ids, method, rule, sampling, max_new_tokens, stops, draws or SeededDraws(seed), trace, calibration,
        on_read,
    )
    return run.records()


def encode_prompt(pair: Pair, prompt: Prompt) -> list[int]:
    """Token ids of a prompt in any of its forms, checked against the target. Raises UserError."""
    if isinstance(prompt, str) or (isinstance(prompt, Sequence) and prompt and isinstance(prompt[0], dict)):
        if pair.tokenizer is None:
            raise UserError("This pair has no tokenizer; give the prompt as token ids, or load one with tokenizer=.")
        ids = pair.tokenizer.encode_prompt(prompt)
    else:
        ids = _checked_ids(pair, prompt, "the prompt")
    if not ids:
        raise UserError("The prompt is empty; give at least one token.")
    limit = pair.target.position_limit
    if len(ids) >= limit:
        raise UserError(
            f"The prompt has {len(ids)} tokens and {pair.target.name} takes {limit - 1} at most "
            "(one position is for the answer); shorten it."
        )
    return ids


def find_or_make_calibration(
    pair: Pair, method: Method, on_notice: Callable[[str], None] | None
) -> Calibration | None:
    """The method's own, the stored calibration or a shipped profile; made now only for a method that grows by it."""
    if method.calibration is not None:
        return method.calibration
    from bastion.decoding.calibrate import calibrate, usable_calibration

    found = usable_calibration(pair)
    if found is not None and found.shipped and method.needs_calibration and on_notice is not None:
        on_notice(shipped_words(found))
    if found is None and method.needs_calibration:
        if on_notice is not None:
            on_notice("Calibrating this device for this pair, once; it takes under a minute.")
        found = calibrate(pair, quick=True)
    return found


@dataclass
class _Decoding:
    """One decode in progress. Each stage runs without gradients; nothing is held across a yield."""

    pair: Pair
    prompt_ids: list[int]
    method: Method
    rule: AcceptanceRule
    sampling: Sampling
    max_new_tokens: int
    stops: frozenset[int]
    draws: Draws
    trace: bool
    calibration: Calibration | None
    on_read: Callable[[int], None] | None = None

    def __post_init__(self) -> None:
        target, drafter = self.pair.target, self.pair.drafter
        longest = min(target.position_limit, len(self.prompt_ids) + self.max_new_tokens)
        depth = drafter.depth if self.method.drafts else 0
        self.cache = target.new_cache(longest + self.method.max_nodes(depth))
        self.session = drafter.start(longest) if self.method.drafts else getattr(self.method, "session", None)
        lookup_tokens = getattr(self.method, "lookup_tokens", 0)
        self.latency = getattr(self.method, "latency", None) or (self.calibration.estimator() if self.calibration is not None else None)
        self.lookup = NgramLookup(self.prompt_ids, lookup_tokens) if lookup_tokens else None
        self.watched = drafter.feature_layer_ids if self.method.drafts else None
        self.clock = StageClock(target.device)
        self.emitted = 0
        self.finished = False

    def records(self) -> Iterator[StepRecord]:
        record = self.prefill()
        yield record
        while not self.finished:
            record = self.step(record.index + 1)
            yield record

    @torch.inference_mode()
    def prefill(self) -> StepRecord:
        """Read the prompt; the target's choice behind it is the first token and the first root."""
        self.clock.start()
        with self.pair.target.watching(self.watched):
            output = self.pair.target.prefill(self.prompt_ids, self.cache, self.on_read)
        self.clock.lap("verify")
        if self.sampling.greedy:
            token = best_token(output.logits[0])
        else:
            token = self.sampling.choose(output.logits[0], self.draws)
        if hasattr(self.session, "begin"):
            self.session.begin(self.prompt_ids[0])
        self.features, self.following = output.features, [*self.prompt_ids[1:], token]
        emitted = self._emit([token])
        gaps = _top2_gaps(output.logits)
        self.clock.lap("commit")
        none = np.zeros(0, dtype=np.int64)
        return StepRecord(
            index=0,
            kind="prefill",
            emitted=emitted,
            context=len(self.prompt_ids) - 1,
            root=self.prompt_ids[-1],
            token_ids=none,
            parents=none,
            depths=none,
            path_log_probs=np.zeros(0),
            accepted=none,
            bonus=token,
            surrogate=1.0,
            stop_reason="prefill",
            seconds=self.clock.seconds(),
            top2_gaps=gaps,
        )

    @torch.inference_mode()
    def step(self, index: int) -> StepRecord:
        target, context, root, clock = self.pair.target, self.cache.length, self.root, self.clock
        clock.start(at_rest=True)
        drafted = self._draft(root, context)
        clock.lap("draft", at_rest=True)
        tree = self._grow(drafted, root, context)
        marginals = drafted if isinstance(drafted, DraftMarginals) else NO_MARGINALS
        laid_out = target.lay_out(tree, context)
        clock.lap("build", at_rest=True)
        with target.watching(self.watched):
            output = target.verify(laid_out, self.cache)
        greedy = self._greedy(output)
        clock.lap("verify", at_rest=greedy is not None)
        accepted, bonus = walk(tree, greedy.choose) if greedy is not None else self._accept(tree, drafted, output.logits)
        kept = self._commit(accepted, output)
        self.following = [*tree.token_ids[accepted[1:]].tolist(), bonus]
        emitted = self._emit(self.following)
        gaps = (_top2_gaps(output.logits[kept]) if greedy is None else greedy.gaps(accepted))[: len(emitted)]
        clock.lap("commit", at_rest=True)
        predicted = None if self.latency is None else float(self.latency.seconds(tree.nodes, context))
        record = StepRecord(
            index=index,
            kind="decode",
            emitted=emitted,
            context=context,
            root=root,
            token_ids=tree.token_ids,
            parents=tree.parents,
            depths=tree.depths,
            path_log_probs=tree.path_log_probs,
            accepted=accepted,
            bonus=bonus,
            surrogate=tree.surrogate,
            stop_reason=tree.stop_reason,
            seconds=clock.seconds(),
            top2_gaps=gaps,
            predicted_verify_seconds=predicted,
            trace=trace_step(tree, marginals, output.logits, context, self.latency, self.calibration,
                             faithfulness(self.rule, tree, output.logits, self.sampling, accepted, emitted)) if self.trace else None,
        )
        target.settle()
        # Only now: what the record holds is what the tree was grown by, not what was learned from it.
        if isinstance(self.latency, OnlineEstimator):
            self.latency.observe(tree.nodes, context, record.seconds.verify)
        return record

    def _deepest(self, context: int) -> int:
        """How deep the model's positions allow a tree to be: one of depth d emits up to d + 1 tokens, the last
        of which stands at context + d + 1."""
        return self.pair.target.position_limit - context - 2

    def _grow(self, marginals: DraftMarginals | BeamCandidates, root: int, context: int) -> DraftTree:
        if isinstance(marginals, BeamCandidates):
            return self.method.grow_drafted(marginals, root, self.trace)
        if self.rule.drawn is not None:
            return grow_sampled(marginals, root, self.method.shape(marginals.depth), self._draw)
        if self.lookup is None:
            return self.method.grow(marginals, root, context, self.trace)
        return self.method.grow_with(self.lookup.propose(marginals), marginals, root, context, max(0, self._deepest(context)), self.trace)

    def _draw(self, probabilities: np.ndarray) -> int:
        return self.draws(torch.from_numpy(probabilities))

    def _accept(self, tree: DraftTree, drafted: DraftMarginals | BeamCandidates, logits: torch.Tensor) -> tuple[np.ndarray, int]:
        if self.rule.drawn is None:
            return self.rule.chosen(tree, logits, self.sampling, self.draws)
        rows = target_rows(logits, self.sampling)
        return self.rule.drawn(tree, proposals_of(tree, drafted, logits.shape[-1]), rows, self.draws)

    def _greedy(self, output: TargetOutput) -> Greedy | None:
        """The target's choices at the nodes; None where they are drawn."""
        if not self.sampling.greedy:
            return None
        if output.logits.device.type == "cpu":
            return Visited(output.logits)
        return EveryNode(choices(output.logits) if output.choices is None else output.choices)

    def _draft(self, root: int, context: int) -> DraftMarginals | BeamCandidates:
        """The drafter's marginals behind `root`, or what it searched for."""
        deepest = self._deepest(context)
        if self.session is None or deepest < 1:
            return NO_MARGINALS
        if hasattr(self.method, "grow_drafted"):
            search = self.method.search(deepest) if self.rule.drawn is None else self.method.search(deepest, self._draw)
            return self.session.draft_tree(self.features, self.following, *search)
        wanted = MARGINALS if self.rule.drawn is not None else self.method.marginals(self.trace)
        if hasattr(self.session, "draft_at"):
            ids, log_probs = self.session.draft_at(context, root, wanted)
        else:
            ids, log_probs = self.session.draft(self.features, root, wanted)
        return DraftMarginals(ids[:deepest], log_probs[:deepest])

    def _commit(self, accepted: np.ndarray, output: TargetOutput) -> torch.Tensor:
        """Keep the accepted rows of the cache, and their features for the next draft; returns them."""
        rows = torch.from_numpy(accepted).to(self.pair.device)
        count = len(accepted)
        in_order = accepted[-1] == count - 1  # ascending, so these are rows 0 to count - 1 as they lie
        self.cache.commit(count if in_order else rows)
        if output.features is not None:
            self.features = output.features[:, :count] if in_order else output.features.index_select(1, rows)
        return rows

    def _emit(self, tokens: list[int]) -> list[int]:
        """Cut at the first stop token, at max_new_tokens, and where the model's positions end."""
        room = min(self.max_new_tokens, self.pair.target.position_limit - len(self.prompt_ids)) - self.emitted
        tokens = tokens[:room]
        stop = next((place for place, token in enumerate(tokens) if token in self.stops), None)
        if stop is not None:
            tokens = tokens[: stop + 1]
        self.emitted += len(tokens)
        if self.lookup is not None:
            self.lookup.observe(tokens)
        self.root = tokens[-1]
        self.finished = stop is not None or len(tokens) == room
        return tokens


def _top2_gaps(logits: torch.Tensor) -> np.ndarray:
    """float32 [rows]: how far the best logit lies above the second."""
    values, _ = top_k(logits.float(), 2)
    return (values[:, 0] - values[:, 1]).cpu().numpy()


def _checked_ids(pair: Pair, ids: Iterable[int], what: str) -> list[int]:
    """Plain ints within the target's vocabulary. Raises UserError."""
    try:
        given = list(ids)
        found = [operator.index(token) for token in given]
    except TypeError:
        found = None
    if found is None or any(isinstance(token, bool) for token in given):
        raise UserError(f"Give {what} as text or as whole numbers (token ids).")
    outside = [token for token in found if not 0 <= token < pair.target.vocab_size]
    if outside:
        raise UserError(
            f"The token id {outside[0]} in {what} is outside the vocabulary of {pair.target.vocab_size} ids (0 to "
            f"{pair.target.vocab_size - 1})."
        )
    return found
