"""The first import of the engine, by one thread at a time.

Every tab is a thread, and so is every worker. While transformers is imported it puts another module into its own
place; a thread that waited for it by another path keeps the one that was there before, and finds no name in it.
"""

from __future__ import annotations

import threading

_one_at_a_time = threading.Lock()
_imported = threading.Event()


def import_engine() -> None:
    """Import whatever decodes, torch included, which takes seconds the first time; then it is quick.

    To be called before a page or a worker imports a part of it that needs transformers.
    """
    with _one_at_a_time:
        import bastion.decoding  # noqa: F401
        _imported.set()


def engine_imported() -> bool:
    """Whether the engine is all there; one that is just being imported is not."""
    return _imported.is_set()
