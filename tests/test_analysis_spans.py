"""Every emitted token has an origin, and the spans joined are the text."""

import pytest
from hypothesis import given, settings, strategies as st

from bastion.analysis import TextSpan, spans_of, text_spans, token_origins
from bastion.records import RunStore
from tests.synthetic_runs import decode, make_info, make_prefill, make_run, make_step, text_of


def test_origins_follow_the_accepted_path_then_the_bonus():
    full = make_step(1, accepted_depth=3)
    cut = make_step(2, accepted_depth=3, emitted=2)
    origins = token_origins([make_prefill(), full, cut])
    assert [(o.origin, o.step, o.node) for o in origins] == [
        ("prefill", 0, None),
        *[("accepted", 1, int(node)) for node in full.accepted[1:]], ("bonus", 1, None),
        *[("accepted", 2, int(node)) for node in cut.accepted[1:3]]]
    assert [o.token_id for o in origins[1:4]] == full.token_ids[full.accepted[1:]].tolist()


def test_a_character_cut_across_tokens_is_one_span_of_the_token_that_completes_it():
    step = make_step(1, accepted_depth=3)
    spans = spans_of([make_prefill(), step], [["A"], ["", "", "😀", "!"]])
    assert spans == [TextSpan("A", "prefill", 0, None, 0, 0),
                     TextSpan("😀", "accepted", 1, int(step.accepted[3]), 1, 3),
                     TextSpan("!", "bonus", 1, None, 4, 4)]


def test_a_character_left_incomplete_stands_in_the_last_span():
    step = make_step(1, accepted_depth=1)
    spans = spans_of([make_prefill(), step], [["A"], ["b", ""]], text="Ab\ufffd")
    assert spans[-1] == TextSpan("\ufffd", "bonus", 1, None, 2, 2)
    assert [span.text for span in spans] == ["A", "b", "\ufffd"]


def test_pieces_must_fit_the_steps():
    with pytest.raises(ValueError, match="2 pieces of text for 1"):
        spans_of([make_prefill()], [["a", "b"]])
    assert spans_of([], []) == []


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 200), st.integers(0, 5))
def test_spans_of_a_saved_run_cover_text_and_tokens(tmp_path_factory, seed, count):
    store = RunStore(tmp_path_factory.mktemp("runs"))
    writer = store.create(make_info(), text_of=text_of, decode=decode)
    for record in make_run(count, seed, nodes=6, choices=4, beyond=0):
        writer.append(record)
    writer.finish()
    run = store.open(writer.id)
    spans = text_spans(run)
    assert "".join(span.text for span in spans) == run.text == decode(run.output_ids)
    assert [position for span in spans for position in range(span.first, span.last + 1)] \
        == list(range(len(run.output_ids)))
