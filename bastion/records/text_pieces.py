"""Output text cut into what each token added, whole characters only."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bastion.token_text import escape_undecodable

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
LONGEST_INCOMPLETE = 3
"""A UTF-8 character has at most 4 bytes, so at most 3 can stand there unfinished. Tokenizers show
them as one U+FFFD together or as one each."""


class TextIncrements:
    """Turns ids into the text each one adds, however the tokenizer cuts characters apart.

    `decode(ids) -> str` renders ids as text, an incomplete character as U+FFFD. Text is held back
    while it could still be the start of a character, so that the token that completes a character
    adds it whole, and the pieces joined (with `flush()`) are the text of all ids. A window of a
    few tokens before the new one is decoded with it: tokenizers drop or add a space at the start
    of a text, and that must happen once, at the real start.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._ids: list[int] = []  # the window: from a place where no character was incomplete
        self._clean = 0            # tokens of the window up to the last such place
        self._given = 0            # characters of the window's text that were given out

    def push(self, ids: Sequence[int]) -> list[str]:
        """One piece of text per id, "" where it completes nothing."""
        return [self._push_one(int(token)) for token in ids]

    def flush(self) -> str:
        """What is still held back, at the end of the output."""
        rest = self._decode(self._ids)[self._given:] if self._ids else ""
        self._given += len(rest)
        return escape_undecodable(rest)

    def _push_one(self, token: int) -> str:
        self._ids.append(token)
        text = self._decode(self._ids)
        sure = len(text)
        while sure > len(text) - LONGEST_INCOMPLETE and text[:sure].endswith(REPLACEMENT):
            sure -= 1
        piece = text[self._given:sure]
        self._given = max(self._given, sure)
        if sure == len(text):
            self._ids = self._ids[self._clean:]
            self._clean = len(self._ids)
            self._given = len(self._decode(self._ids))
        return escape_undecodable(piece)
