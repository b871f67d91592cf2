"""What a benchmark needs of a loaded pair: encode, decode with one calibration throughout, and say what it is."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from typing import Any, Protocol

from bastion import __version__
from bastion.errors import UserError
from bastion.step import StepRecord

Messages = list[dict[str, str]]
Notice = Callable[[str, float], None]
Read = Callable[[int], None]
VERSIONED = ("torch", "transformers", "numpy")


class Decoder(Protocol):
    """`PairDecoder` is the one in use."""

    stop_token_ids: Sequence[int]

    def facts(self) -> dict[str, Any]:
        """Plain values: pair, device, dtype, attention, drafter_depth, versions."""

    def calibrate(self, methods: Sequence[str], say: Notice) -> dict[str, Any]:
        """The device's calibration now, made when a method needs one and there is none; {} when none needs it."""

    def pin(self, calibration: Mapping[str, Any]) -> None:
        """Decode with this calibration from now on, whatever is stored for the device later."""

    def encode(self, messages: Messages) -> list[int]:
        """Raises UserError when they do not fit the model."""

    def decode(self, prompt_ids: list[int], method: str, temperature: float, max_new_tokens: int, seed: int,
               trace: bool = False, on_read: Read | None = None) -> Iterator[StepRecord]: ...

    def text(self, ids: Sequence[int]) -> str: ...

    def texts(self, ids: Sequence[int]) -> list[str]: ...


class PairDecoder:
    """A pair of `bastion.load_pair`. torch is imported at the first call."""

    def __init__(self, pair: Any) -> None:
        if pair.tokenizer is None:
            raise UserError(f"{pair.name} has no tokenizer, and prompts are text: name one that has.")
        self._pair, self._calibration = pair, None
        self.stop_token_ids = sorted(pair.stop_token_ids)

    def facts(self) -> dict[str, Any]:
        pair = self._pair
        return {"pair": pair.name, "device": pair.device_name, "dtype": pair.dtype_name, "attention": pair.attention,
                "drafter_depth": pair.drafter.depth if pair.drafter is not None else None,
                "versions": {"python": platform.python_version(), "bastion": __version__,
                             **{name: metadata.version(name) for name in VERSIONED}}}

    def calibrate(self, methods: Sequence[str], say: Notice) -> dict[str, Any]:
        from bastion.decoding.calibrate import calibrate, stored_calibration
        from bastion.decoding.methods import resolve_method
        if not any(resolve_method(method).needs_calibration for method in methods):
            return {}
        try:
            found = stored_calibration(self._pair)
        except UserError:  # damaged: made again, as decoding itself does
            found = None
        return (found or calibrate(self._pair, quick=True, progress=say)).to_json()

    def pin(self, calibration: Mapping[str, Any]) -> None:
        from bastion.latency import Calibration
        self._calibration = Calibration.from_json(calibration, "The calibration of this benchmark") if calibration else None

    def encode(self, messages: Messages) -> list[int]:
        from bastion.decoding.loop import encode_prompt
        # One user message as text, so that a model without a chat template continues it.
        return encode_prompt(self._pair, messages[0]["content"] if len(messages) == 1 else messages)

    def decode(self, prompt_ids: list[int], method: str, temperature: float, max_new_tokens: int, seed: int,
               trace: bool = False, on_read: Read | None = None) -> Iterator[StepRecord]:
        from bastion.decoding import decode
        from bastion.decoding.methods import resolve_method
        built = resolve_method(method)
        if built.needs_calibration and self._calibration is not None:
            built = built.calibrated(self._calibration)
        return decode(self._pair, prompt_ids, method=built, temperature=temperature, max_new_tokens=max_new_tokens,
                      seed=seed, trace=trace, on_read=on_read)

    def text(self, ids: Sequence[int]) -> str:
        return self._pair.tokenizer.decode(list(ids))

    def texts(self, ids: Sequence[int]) -> list[str]:
        return self._pair.tokenizer.token_texts(list(ids))
