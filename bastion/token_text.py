"""How the text of a token is shown: nothing hidden, nothing that could reorder a page.

A leaf module (standard library only), so that decoding, records and figures share one rule.
"""

from __future__ import annotations

import unicodedata

SPACE, NEWLINE, TAB = "␣", "⏎", "→"

# Lone surrogates of Python's "surrogateescape": the byte 0x80..0xFF that could not be decoded.
_FIRST_ESCAPED_BYTE, _LAST_ESCAPED_BYTE = 0xDC80, 0xDCFF
# Cf, Cc, Cs, Zl, Zp: format (bidi controls, zero-width, tags), control, surrogate, line breaks.
_MADE_VISIBLE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def text_from_bytes(raw: bytes) -> str:
    """Bytes of one token as text; a byte that is no part of a whole character reads `<0xE2>`.

    Byte-level vocabularies cut characters apart, so one token may hold half of one.
    """
    return escape_undecodable(raw.decode("utf-8", "surrogateescape"))


def escape_undecodable(text: str) -> str:
    """Lone surrogates written out, so that the result can always be encoded as UTF-8.

    A surrogate that stands for a byte (Python's "surrogateescape") becomes `<0xE2>`, any other
    `<U+D800>`.
    """
    if not any("\ud800" <= character <= "\udfff" for character in text):
        return text
    return "".join(_surrogate(character) if "\ud800" <= character <= "\udfff" else character
                   for character in text)


def show_token(text: str | bytes) -> str:
    """The text of one token as a tree shows it, one line, every character visible.

    Leading spaces as ␣ (and every space of a token made of white space alone), newline as ⏎, tab
    as →, undecodable bytes as `<0xE2>`, other control, format and bidi characters as their code
    point, e.g. `<U+202E>`. The empty text stays empty.
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8", "surrogateescape")
    body = text.lstrip(" ")
    marked = SPACE * (len(text) - len(body)) + body
    if not text.strip():
        marked = marked.replace(" ", SPACE)
    return "".join(_visible(character) for character in marked)


def _visible(character: str) -> str:
    if character == "\n":
        return NEWLINE
    if character == "\t":
        return TAB
    if "\ud800" <= character <= "\udfff":
        return _surrogate(character)
    if unicodedata.category(character) in _MADE_VISIBLE or character == "\N{NO-BREAK SPACE}":
        return f"<U+{ord(character):04X}>"
    return character


def _surrogate(character: str) -> str:
    point = ord(character)
    if _FIRST_ESCAPED_BYTE <= point <= _LAST_ESCAPED_BYTE:
        return f"<0x{point - 0xDC00:02X}>"
    return f"<U+{point:04X}>"
