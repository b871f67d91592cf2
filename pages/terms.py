"""Every term with its one definition, the same words as the hover texts of the other pages."""

import streamlit as st

from bastion.figures.glossary import GLOSSARY
from pages.parts.text import plain

st.title("Terms", anchor=False)
st.caption("The words used on every page, each with one meaning.")
for term, definition in sorted(GLOSSARY.items()):
    name, text = st.columns([1, 4])
    name.markdown(f"**{plain(term)}**")
    text.markdown(definition)
