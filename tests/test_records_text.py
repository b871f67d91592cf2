"""The text of an output in pieces, one per token, whatever the tokens cut apart."""

import pytest
from hypothesis import given, settings, strategies as st

from bastion.records import TextIncrements


def byte_decode(vocabulary):
    """A byte-level tokenizer: ids are positions in a list of byte strings."""
    return lambda ids: b"".join(vocabulary[i] for i in ids).decode("utf-8", "replace")


def stripping_decode(words):
    """A tokenizer that drops the space at the start of a text, as sentencepiece ones do."""
    return lambda ids: "".join(words[i] for i in ids).removeprefix(" ")


def fallback_decode(units):
    """Byte fallback: single bytes, shown as one U+FFFD each while they make no character."""
    def decode(ids):
        text, pending = "", b""
        for unit in [units[i] for i in ids] + [""]:
            if isinstance(unit, bytes):
                pending += unit
                continue
            try:
                text += pending.decode()
            except UnicodeDecodeError:
                text += "\ufffd" * len(pending)
            text, pending = text + unit, b""
        return text
    return decode


def test_an_emoji_over_four_tokens_comes_with_the_last():
    units = [b"ok ", b"\xf0", b"\x9f", b"\x98", b"\x80", b"!"]
    assert TextIncrements(byte_decode(units)).push(range(6)) == ["ok ", "", "", "", "😀", "!"]
    units[0], units[5] = "ok ", "!"
    assert TextIncrements(fallback_decode(units)).push(range(6)) == ["ok ", "", "", "", "😀", "!"]


def test_a_token_that_ends_one_word_and_starts_half_a_character():
    increments = TextIncrements(byte_decode([b"caf\xc3", b"\xa9 \xe2", b"\x82\xac"]))
    assert increments.push([0, 1, 2]) == ["caf", "é ", "€"]
    assert increments.flush() == ""


def test_what_never_becomes_a_character_is_given_at_the_end():
    increments = TextIncrements(byte_decode([b"a", b"\xf0\x9f"]))
    assert increments.push([0, 1]) == ["a", ""]
    assert increments.flush() == "\ufffd"
    assert increments.flush() == ""


def test_spaces_are_dropped_at_the_real_start_only():
    increments = TextIncrements(stripping_decode([" Once", " upon", " a", "time"]))
    assert increments.push([0, 1]) + increments.push([2, 3]) == ["Once", " upon", " a", "time"]


@settings(deadline=None)
@given(st.lists(st.binary(max_size=5), max_size=30))
def test_pieces_joined_are_the_whole_text_for_any_bytes(vocabulary):
    ids = range(len(vocabulary))
    decode = byte_decode(vocabulary)
    increments = TextIncrements(decode)
    assert "".join(increments.push(ids)) + increments.flush() == decode(ids)


@settings(deadline=None)
@given(st.text(max_size=30), st.data())
def test_valid_text_cut_anywhere_shows_no_broken_character(text, data):
    raw = text.encode()
    cuts = data.draw(st.lists(st.integers(0, len(raw)), max_size=40)) + [0, len(raw)]
    cuts = sorted(cuts)
    vocabulary = [raw[a:b] for a, b in zip(cuts, cuts[1:])]
    increments = TextIncrements(byte_decode(vocabulary))
    pieces = increments.push(range(len(vocabulary)))
    assert "".join(pieces) + increments.flush() == text
    assert "\ufffd" in text or not any("\ufffd" in piece for piece in pieces)


@pytest.mark.parametrize("length", [1, 5, 400])
def test_decoding_a_token_looks_at_a_few_tokens_only(length):
    longest = []

    def decode(ids):
        longest.append(len(ids))
        return "ab" * len(ids)

    TextIncrements(decode).push(range(length))
    assert max(longest) <= 2
