"""Which pair the engine runs: chosen once in the sidebar, the same on every page of a session."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from bastion.jobs import PairChoice, manager
from bastion.jobs.engine_import import engine_imported
from bastion.jobs.pairs import DTYPES, memory_words, offered_pairs
from pages.parts.text import plain

OTHER = "another"
PAIR, TARGET, DRAFTER, SMALL, DTYPE = "pair", "pair-target", "pair-drafter", "pair-small-lm", "pair-dtype"
SEEN, CHOSEN = "pair-seen", "pair-chosen"


def pair_chooser(shown: str = "", saved: PairChoice | None = None) -> PairChoice:
    """Draw the choice at the top of the sidebar. `saved`: what the run, race or benchmark `shown` ran on; it is
    taken over when that is opened, unless a person has chosen by hand."""
    offers = {offer.name: offer for offer in offered_pairs()}
    _bring(shown, saved, offers)
    with st.sidebar:
        st.selectbox("Pair", [*offers, OTHER], key=PAIR, persist_state="session", on_change=_by_hand,
                     format_func=lambda one: "Folders or hub names" if one == OTHER else one,
                     help="A target, and the drafter that guesses ahead for it. "
                          + " · ".join(f"{plain(one.name)}: {plain(one.summary)}" for one in offers.values()))
        if st.session_state[PAIR] == OTHER:
            st.text_input("Target", key=TARGET, persist_state="session", max_chars=500, placeholder="Qwen/Qwen3-4B, or a folder", on_change=_by_hand,
                          help="A causal language model: its folder, or its name on the Hugging Face hub. No code of it is run.")
            st.text_input("Drafter", key=DRAFTER, persist_state="session", max_chars=500, placeholder="a folder or a hub name, or nothing", on_change=_by_hand,
                          help="A drafter trained for this target. Without one the methods run that need none, such as ar and ngram.")
            st.text_input("Small model", key=SMALL, persist_state="session", max_chars=500, placeholder="a folder or a hub name, or nothing", on_change=_by_hand,
                          help="A small causal language model with the target's tokenizer, which drafts for the method small-lm.")
        st.selectbox("Number type", DTYPES, key=DTYPE, persist_state="session", on_change=_by_hand,
                     help="auto: on a CPU bfloat16 where it is measured to be faster and was found to keep a tree's tokens those of plain "
                          "decoding, else float32; bfloat16 on a GPU. Each run says which it was, and why.")
        choice = chosen_pair()
        if engine_imported() and choice.label and (words := memory_words(choice, manager().engine.device(choice))):
            st.caption(plain(words[0].upper() + words[1:]) + ". It is fetched at the first use.")
    return choice


def chosen_pair() -> PairChoice:
    """What the sidebar says now. A click's callback asks here: what was typed just before may come with the click."""
    state = st.session_state
    name, dtype = state[PAIR], state[DTYPE]
    if name != OTHER:
        return PairChoice(name, dtype=dtype)
    return PairChoice(None, state[TARGET].strip(), state[DRAFTER].strip() or None, dtype=dtype, small_lm=state[SMALL].strip() or None)


def preset_choice(info: Mapping[str, Any]) -> PairChoice | None:
    """The choice that a run's pair stands for, when it is a preset; the number type is this machine's own."""
    name = info.get("pair")
    return PairChoice(name) if name in [offer.name for offer in offered_pairs()] else None


def saved_choice(values: Any) -> PairChoice | None:
    """The choice that a race or benchmark keeps as plain values; None when they are no such thing."""
    try:
        return PairChoice(**values)
    except TypeError:
        return None


def _by_hand() -> None:
    st.session_state[CHOSEN] = True


def _bring(shown: str, saved: PairChoice | None, offers: dict[str, Any]) -> None:
    state = st.session_state
    for key in (TARGET, DRAFTER, SMALL):
        state.setdefault(key, "")
    if not shown or saved is None or state.get(SEEN) == shown:
        return
    state[SEEN] = shown
    if state.get(CHOSEN):
        return
    if saved.preset in offers:
        state[PAIR] = saved.preset
    elif isinstance(saved.target, str) and saved.target:
        state[PAIR], state[TARGET], state[DRAFTER] = OTHER, saved.target, saved.drafter if isinstance(saved.drafter, str) else ""
        state[SMALL] = saved.small_lm if isinstance(saved.small_lm, str) else ""
    if saved.dtype in DTYPES:
        state[DTYPE] = saved.dtype
