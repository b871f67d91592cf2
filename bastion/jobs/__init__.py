"""The queue between pages and models: one worker per device, live events, cancel. No torch at import."""

from bastion.jobs.examples import EXAMPLES, Example
from bastion.jobs.fetching import model_ready
from bastion.jobs.job import FINAL, Cancelled, JobView, Progress, Yardstick
from bastion.jobs.log import Event
from bastion.jobs.job_manager import JobManager, manager
from bastion.jobs.request import DecodeRequest, PairChoice

__all__ = ["EXAMPLES", "Example", "model_ready", "FINAL", "Cancelled", "JobView", "Progress", "Yardstick", "Event",
           "JobManager", "manager", "DecodeRequest", "PairChoice"]
