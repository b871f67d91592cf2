"""Records turned into pictures: the tree component, plotly charts, palette, numbers, glossary.

No decoding, no disk beyond this package's own files, and no streamlit: `pages/` mounts what is
built here.
"""
