"""Fetching the default model as a job, so that a page shows how far it is and can stop it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

from bastion.errors import UserError
from bastion.jobs.job import CANCELLED, DONE, FAILED, FETCHING, Cancelled, Job, Progress, seconds_left

log = logging.getLogger(__name__)

Fetch = Callable[..., Path]   # (source, progress) -> folder, as bastion.models.fetch.fetch_default


def model_ready() -> bool:
    """Whether the default target is on this machine. Needs neither torch nor the network."""
    from bastion.models.fetch import default_model_ready
    return default_model_ready()


def run_fetch(job: Job, fetch: Fetch | None = None) -> None:
    """Fetch the default target; ends in a final state of the job, with one sentence when it fails."""
    if fetch is None:
        from bastion.models.fetch import fetch_default as fetch
    began = time.monotonic()
    try:
        job.enter(FETCHING, "Starting the download")
        fetch(None, lambda words, share: job.say(Progress(words, share, 1.0, seconds_left(began, share, 1.0))))
        job.end(DONE, "The default model is ready")
    except Cancelled:
        job.end(CANCELLED, "Stopped")
    except UserError as error:
        job.end(FAILED, "Failed", str(error))
    except Exception as error:
        log.exception("fetching the default model failed")
        job.end(FAILED, "Failed", f"The default model could not be fetched ({type(error).__name__}); the log of the "
                                  "server has the details, and `python -m bastion fetch` tries again.")
