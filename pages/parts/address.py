"""Numbers that stand in the address, where anything can be typed."""

from __future__ import annotations

import math
from typing import Literal

import streamlit as st
from streamlit.errors import StreamlitAPIException


def bound(name: str) -> Literal["query-params"] | None:
    """What a number input takes as `bind`: nothing while the address holds an infinite number for it.

    Streamlit sets aside what is no number or out of range, but not an infinity (`1e400` reads as one), which
    it cannot make a whole number of. The address then loses the number, and the page begins again without it.
    """
    try:
        infinite = math.isinf(float(st.query_params.get(name, "")))
    except ValueError:
        return "query-params"
    if not infinite:
        return "query-params"
    try:
        del st.query_params[name]
    except StreamlitAPIException:
        return None   # bound by an earlier run of this session (the browser's Back): the address keeps it, unread
    st.rerun()
