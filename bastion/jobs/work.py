"""Work of any kind on a device's queue: a race, a calibration, a benchmark. It ends in a final state."""

from __future__ import annotations

import logging
from collections.abc import Callable

from bastion.errors import UserError
from bastion.jobs.job import CANCELLED, DONE, FAILED, Cancelled, Job

log = logging.getLogger(__name__)

Work = Callable[[Job], None]
"""Does the work, reports through the job (`enter`, `say`, `know`) and raises what stops it."""


def sentence(error: BaseException) -> str:
    """What a person is told: a UserError's own words, anything else named in one sentence."""
    if isinstance(error, UserError):
        return str(error)
    first = (str(error).strip().splitlines() or [""])[0][:200]
    name = type(error).__name__
    return (f"It stopped because of an unexpected error ({name}{': ' + first if first else ''}); "
            "the log of the server has the details.")


def run_work(job: Job, work: Work) -> bool:
    """Run `work`; every outcome ends in a final state of the job. True when it is done."""
    try:
        job.stop_here()
        work(job)
        job.end(DONE, "Done")
        return True
    except Cancelled:
        job.end(CANCELLED, "Stopped")
    except Exception as error:
        if not isinstance(error, UserError):
            log.exception("job %s failed", job.id)
        job.end(FAILED, "Failed", sentence(error))
    return False
