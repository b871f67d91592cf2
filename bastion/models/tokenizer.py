"""Text to ids and back, with what the user typed kept as text."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from bastion.errors import UserError
from bastion.token_text import text_from_bytes

Messages = Sequence[dict[str, str]]


class Tokenizer:
    """Wraps a Hugging Face tokenizer (`backend`).

    A special token spelled in a prompt, such as `<|im_end|>`, stays the characters it is made of;
    only the chat template writes control tokens.
    """

    def __init__(self, backend):
        self.backend = backend

    @property
    def has_chat_template(self) -> bool:
        return bool(self.backend.chat_template)

    def encode_prompt(self, prompt: str | Messages) -> list[int]:
        """Ids that ask the model for an answer.

        A str is one user message where the model has a chat template, else the text to continue.
        Messages are dicts with `role` and `content`, both str. UserError on an empty prompt, on
        anything else, and on messages for a model without a chat template.
        """
        if isinstance(prompt, str):
            if not prompt.strip():
                raise UserError("The prompt is empty; write something to answer or to continue.")
            if not self.has_chat_template:
                return self.encode_text(prompt)
            prompt = [{"role": "user", "content": prompt}]
        messages = [self._checked(message) for message in prompt]
        if not messages or not any(message["content"].strip() for message in messages):
            raise UserError("The prompt is empty; give at least one message with text in it.")
        if not self.has_chat_template:
            raise UserError("This model has no chat template; give the prompt as plain text or as ids.")
        try:
            return self.backend.apply_chat_template(
                messages,
                add_generation_prompt=True,
                tokenize=True,
                return_dict=False,
                sanitize_control_tokens=True,
            )
        except Exception as error:  # a template is a program of the model's author and raises what it likes
            raise UserError(f"The model's chat template refuses these messages: {error}") from None

    def encode_opening(self, text: str) -> list[int]:
        """Ids of a user's message that is not finished, for the model itself to go on with."""
        if not self.has_chat_template:
            return self.encode_text(text)
        return self.backend.apply_chat_template(
            [{"role": "user", "content": _encodable(text)}],
            continue_final_message=True,
            tokenize=True,
            return_dict=False,
            sanitize_control_tokens=True,
        )

    def encode_text(self, text: str) -> list[int]:
        """Ids of plain text to continue, led by the model's own start token where it has one."""
        return self.backend(_encodable(text), split_special_tokens=True)["input_ids"]

    def decode(self, ids: Sequence[int]) -> str:
        """The text that `ids` spell, special tokens left out."""
        return self.backend.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def token_texts(self, ids: Sequence[int]) -> list[str]:
        """The text of each token alone; a byte that is part of no whole character reads `<0xE2>`."""
        return [self._token_text(int(token)) for token in ids]

    def _token_text(self, token: int) -> str:
        spelled = self.backend.convert_ids_to_tokens(token)
        if spelled is None:
            return ""  # an id past the tokenizer's vocabulary, padding rows of the embedding
        if self._is_byte_level and token not in self._added:
            return text_from_bytes(bytes(_BYTE_OF[character] for character in spelled))
        if spelled in self.backend.all_special_tokens:
            return spelled
        # sentencepiece marks a leading space by U+2581, which decoding a token alone would lose
        return spelled.replace("\u2581", " ")

    @cached_property
    def _added(self) -> frozenset[int]:
        return frozenset(self.backend.added_tokens_decoder)

    @cached_property
    def _is_byte_level(self) -> bool:
        """Whether every ordinary token is spelled in the alphabet of byte-level BPE."""
        ordinary = (spelled for spelled, token in self.backend.get_vocab().items() if token not in self._added)
        return all(character in _BYTE_OF for spelled in ordinary for character in spelled)

    @staticmethod
    def _checked(message) -> dict[str, str]:
        try:
            role, content = message["role"], message["content"]
        except (TypeError, KeyError, IndexError):
            raise UserError("Give messages as a list of {'role': ..., 'content': ...}, or ids as whole numbers.") from None
        if not isinstance(role, str) or not isinstance(content, str):
            raise UserError("A message's role and content must both be text.")
        return {"role": role, "content": _encodable(content)}


def _encodable(text: str) -> str:
    """Lone surrogates, which no tokenizer takes, become the replacement character."""
    return text.encode("utf-8", "replace").decode("utf-8") if not text.isascii() else text


def _byte_alphabet() -> dict[str, int]:
    """Character -> byte of byte-level BPE (GPT-2): printable Latin-1 stands for itself, the rest for 256, 257, ..."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    for offset, byte in enumerate(sorted(set(range(256)) - set(printable))):
        alphabet[chr(256 + offset)] = byte
    return alphabet


_BYTE_OF = _byte_alphabet()
