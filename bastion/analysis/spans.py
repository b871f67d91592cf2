"""The output as spans of text, each with where it came from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bastion.records.run import Run
from bastion.step import StepRecord

PREFILL, ACCEPTED, BONUS = "prefill", "accepted", "bonus"


@dataclass(frozen=True, slots=True)
class TextSpan:
    """Text that one token completed. Almost always one token; several where a character is cut
    across tokens, which no one of them shows by itself."""

    text: str
    origin: str      # of the completing token: "prefill", "accepted" or "bonus"
    step: int        # index of the step that emitted the completing token
    node: int | None  # its tree node; None for a bonus token and the prefill's
    first: int       # positions in the output ids: first..last, both included
    last: int


@dataclass(frozen=True, slots=True)
class TokenOrigin:
    """Where one emitted token came from."""

    token_id: int
    origin: str
    step: int
    node: int | None


def token_origins(steps: Sequence[StepRecord]) -> list[TokenOrigin]:
    """One entry per emitted token, in output order."""
    origins: list[TokenOrigin] = []
    for step in steps:
        path = [int(node) for node in step.accepted[1:]]
        for position, token in enumerate(step.emitted):
            if step.kind == "prefill":
                origin, node = PREFILL, None
            elif position < len(path):
                origin, node = ACCEPTED, path[position]
            else:
                origin, node = BONUS, None
            origins.append(TokenOrigin(int(token), origin, step.index, node))
    return origins


def text_spans(run: Run) -> list[TextSpan]:
    """The spans of a run; their texts joined are `run.text`."""
    return spans_of(run.steps, run.pieces, run.text)


def spans_of(steps: Sequence[StepRecord], pieces: Sequence[Sequence[str]],
             text: str | None = None) -> list[TextSpan]:
    """The spans of steps, live or saved.

    `pieces[s][t]` is the text that token t of step s added (what `RunWriter.append` returned); an
    empty piece waits for the token that completes its character and goes into that one's span.
    Where `text`, the whole output, says more than the pieces (a character left incomplete at the
    end), the rest is added to the last span; where they disagree the pieces stand.
    """
    texts = [piece for step_pieces in pieces for piece in step_pieces]
    origins = token_origins(steps)
    if len(texts) != len(origins):
        raise ValueError(f"{len(texts)} pieces of text for {len(origins)} emitted tokens")
    spans: list[TextSpan] = []
    first = 0
    for position, (piece, origin) in enumerate(zip(texts, origins)):
        if piece or position + 1 == len(texts):
            spans.append(TextSpan(piece, origin.origin, origin.step, origin.node, first, position))
            first = position + 1
    joined = "".join(texts)
    if spans and text is not None and text.startswith(joined) and len(text) > len(joined):
        end = spans[-1]
        spans[-1] = TextSpan(end.text + text[len(joined):], end.origin, end.step, end.node,
                             end.first, end.last)
    return spans
