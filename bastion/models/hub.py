"""Fetching from the Hugging Face hub; whatever goes wrong is one sentence that says what to do."""

from __future__ import annotations

import socket
import time
import urllib.request
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from bastion.errors import UserError

SECONDS_TO_CONNECT = 5.0
SECONDS_REMEMBERED = 30.0
T = TypeVar("T")


def hub_out_of_reach() -> bool:
    """Whether to use only what was fetched before: offline by setting, or the hub's host does not answer.

    One short try to connect: the libraries themselves try for over half a minute. Behind a proxy they are asked.
    """
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return True
    if {"http", "https", "all"} & urllib.request.getproxies().keys():
        return False
    return not _answers(constants.ENDPOINT, int(time.monotonic() // SECONDS_REMEMBERED))


@lru_cache(maxsize=1)
def _answers(endpoint: str, period: int) -> bool:
    """Whether the endpoint takes connections; asked once in a while (`period`), not once for every file."""
    address = urlsplit(endpoint)
    port = address.port or (80 if address.scheme == "http" else 443)
    try:
        socket.create_connection((address.hostname or "", port), timeout=SECONDS_TO_CONNECT).close()
    except OSError:
        return False
    return True


def from_hub(load: Callable[[bool], T], source: str, role: str) -> T:
    """`load(local_files_only)` of a loader of transformers or of the hub. Raises UserError for whatever it raises."""
    here = Path(source).expanduser().is_dir()
    cut_off = not here and hub_out_of_reach()
    try:
        return load(here or cut_off)
    except UserError:
        raise
    except ImportError as error:
        raise UserError(f"The {role} {source} needs a package that is not installed: {first_line(error)}") from None
    except Exception as error:  # the libraries raise OSError, ValueError, KeyError, HTTP and parser errors alike
        if here:
            raise UserError(f"The {role} in {source} cannot be loaded: {first_line(error)}") from None
        raise UserError(_not_fetched(error, source, role, cut_off)) from None


def _not_fetched(error: Exception, source: str, role: str, cut_off: bool) -> str:
    start = f"The {role} {source} cannot be fetched from the Hugging Face hub"
    kinds = {type(cause).__name__ for cause in _causes(error)}
    option = "--target" if role == "target" else f"--{role}"
    if "GatedRepoError" in kinds:
        return (f"{start}: it is gated. Log in at https://huggingface.co/{source} and accept its licence, then run `hf auth login` "
                "here (or set HF_TOKEN) and try again.")
    if "RepositoryNotFoundError" in kinds:
        return f"{start}: there is no such model, or it is private. Check the name; for a private one run `hf auth login`."
    if cut_off or kinds & {"LocalEntryNotFoundError", "OfflineModeIsEnabled", "ConnectionError", "ConnectError", "ConnectTimeout"}:
        return (f"{start}: there is no network, and it was not fetched before. Run `hf download {source}` where there is a network, "
                f"or carry the folder over and give it as {option} FOLDER.")
    return f"{start}: {first_line(error)} Check the name, the network and your access, or give a folder as {option}."


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:200].rstrip(".") + "."
