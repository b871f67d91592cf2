"""Keeps the libraries' progress bars and advice off the terminal: errors are ours to say."""

from __future__ import annotations

import logging
import os


def quieten_libraries() -> None:
    """Errors only from transformers and torch, and no progress bars; for programs, not for pages."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    logging.getLogger("torch").setLevel(logging.ERROR)
