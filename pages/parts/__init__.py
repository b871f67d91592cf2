"""Pieces of pages: widgets and layout, nothing that decodes or computes."""
