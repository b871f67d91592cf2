"""Tests on how a question is put to the target: its chat template and thinking mode."""

from __future__ import annotations

from collections.abc import Callable

from bastion.decoding.doctor.bench import Bench
from bastion.decoding.doctor.drafting import Change, Variant
from bastion.errors import UserError
from bastion.models.pair import Pair


def template(bench: Bench) -> list[Variant]:
    pair = bench.pair
    now, backend = pair.tokenizer.backend.chat_template, pair.tokenizer.backend
    found = []
    own = _folders_template(pair)
    if own and own != now:
        found.append(_variant(bench, "template of the target's folder", "use the chat template in the target's own folder (chat_template.jinja "
                              "or tokenizer_config.json)", lambda text: _through(backend, text, own)))
    if now:
        found.append(_variant(bench, "no chat template", "the drafter was trained on plain text: prompt the target without a chat template",
                              pair.tokenizer.encode_text))
        if "enable_thinking" in now:
            for on in (True, False):
                found.append(_variant(bench, f"thinking {'on' if on else 'off'}", f"decode with enable_thinking={on} in the chat template",
                                      lambda text, on=on: _through(backend, text, now, enable_thinking=on)))
    return found


def _variant(bench: Bench, label: str, todo: str, encode: Callable[[str], list[int]]) -> Variant:
    return Variant(label, todo, Change(answers=lambda: bench.contrasted(bench.pair, encode)))


def _through(backend, text: str, chat_template: str, **options) -> list[int]:
    return backend.apply_chat_template([{"role": "user", "content": text}], chat_template=chat_template, add_generation_prompt=True,
                                       tokenize=True, return_dict=False, **options)


def _folders_template(pair: Pair) -> str | None:
    """The template that the target's folder or hub page holds, where it can be read."""
    from bastion.models.pair import _load_tokenizer

    source = getattr(pair.target.model.config, "_name_or_path", "")
    if not source:
        return None
    try:
        loaded = _load_tokenizer(source, required=False)
    except UserError:
        return None
    return loaded.backend.chat_template if loaded is not None else None
