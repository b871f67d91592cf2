"""Tokens are shown as they are, and nothing in them can disturb a page."""

import pytest
from hypothesis import given, settings, strategies as st

from bastion.token_text import escape_undecodable, show_token, text_from_bytes


@pytest.mark.parametrize("text, shown", [
    (" sheep", "␣sheep"), ("  two", "␣␣two"), ("a b", "a b"), ("   ", "␣␣␣"), ("\n", "⏎"),
    ("\n  ", "⏎␣␣"), ("\t", "→"), ("", ""), ("\u202e", "<U+202E>"), ("a\u200bb", "a<U+200B>b"),
    ("\x00", "<U+0000>"), ("\x1b[31m", "<U+001B>[31m"), ("\r\n", "<U+000D>⏎"),
    ("\u2028", "<U+2028>"), ("\udce2", "<0xE2>"), (b"\xe2\x96", "<0xE2><0x96>"),
    (b" \xf0\x9f\x98\x80", "␣😀"), ("\ud800", "<U+D800>"), ("<img src=x>", "<img src=x>"),
    ("שלום", "שלום"), ("\u00a0", "<U+00A0>"), ("\U000e0041", "<U+E0041>"),
])
def test_show_token(text, shown):
    assert show_token(text) == shown


def test_bytes_that_are_no_whole_character():
    assert text_from_bytes("né".encode()) == "né"
    assert text_from_bytes("é".encode()[:1]) == "<0xC3>"
    assert escape_undecodable("plain") == "plain"


@settings(deadline=None)
@given(st.one_of(st.text(), st.binary()))
def test_what_is_shown_is_one_printable_encodable_line(text):
    shown = show_token(text)
    shown.encode("utf-8")
    assert len(shown.splitlines()) <= 1
    assert "\t" not in shown and "\u202e" not in shown and not shown.startswith(" ")
    assert show_token(shown) == shown or shown.strip() != shown


@settings(deadline=None)
@given(st.binary())
def test_bytes_always_become_encodable_text(raw):
    text_from_bytes(raw).encode("utf-8")
