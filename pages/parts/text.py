"""Text that came from outside, made safe to stand in a label: markdown is left no meaning."""

from __future__ import annotations

import re
import unicodedata

_MARKDOWN = re.compile(r"([\\`*_{}\[\]()#+\-.!|<>~$:^&=@/\"'])")


def plain(text: str, longest: int | None = None) -> str:
    """One line of `text`, cut to `longest` characters, without control or direction-changing characters."""
    line = " ".join(text.split())
    line = "".join(c for c in line if unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Zl", "Zp"))
    if longest is not None and len(line) > longest:
        line = line[: longest - 1].rstrip() + "…"
    return _MARKDOWN.sub(r"\\\1", line)
