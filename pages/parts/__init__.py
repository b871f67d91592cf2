"""Pieces of pages: widgets and layout, nothing that decodes or computes.

A link to a page may be the first thing that a new server is asked for. Streamlit then takes pages/ for its
older kind of app, in which every file is a page of its own, until `app.py` has run once: run it now.
"""

import streamlit as st
from streamlit.runtime.pages_manager import PagesManager

if PagesManager.uses_pages_directory:
    PagesManager.uses_pages_directory = False
    st.rerun()
