"""Output text cut into what each token added, whole characters only."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bastion.token_text import escape_undecodable

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
LONGEST_HOLD = 3
"""A UTF-8 character has at most 4 bytes, so at most 3 tokens can wait for their last one."""


class TextIncrements:
    """Turns ids into the text each one adds, however the tokenizer cuts characters apart.

    `decode(ids) -> str` renders ids as text, an incomplete character as U+FFFD. A token that ends
    inside a character adds "" and the token that completes it adds the whole character, so that
    the pieces joined (with `flush()`) are the text of all ids. Each token is decoded with the few
    before it as surroundings: tokenizers drop or add a space at the start of a text, and that
    must happen once, at the real start.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._ids: list[int] = []
        self._shown_from = 0   # decoding starts here: one settled token run before the unread part
        self._read = 0         # tokens before this one have given their text

    def push(self, ids: Sequence[int]) -> list[str]:
        """One piece of text per id."""
        return [self._push_one(int(token)) for token in ids]

    def _push_one(self, token: int) -> str:
        self._ids.append(token)
        before = self._decode(self._ids[self._shown_from:self._read]) if self._read else ""
        after = self._decode(self._ids[self._shown_from:])
        held = len(self._ids) - self._read
        if len(after) <= len(before) and not held > LONGEST_HOLD:
            return ""
        if after.endswith(REPLACEMENT) and held <= LONGEST_HOLD:
            return ""
        self._shown_from, self._read = self._read, len(self._ids)
        return escape_undecodable(after[len(before):])

    def flush(self) -> str:
        """The text of what is still held back, at the end of the output."""
        if self._read == len(self._ids):
            return ""
        before = self._decode(self._ids[self._shown_from:self._read]) if self._read else ""
        after = self._decode(self._ids[self._shown_from:])
        self._shown_from, self._read = self._read, len(self._ids)
        return escape_undecodable(after[len(before):])
