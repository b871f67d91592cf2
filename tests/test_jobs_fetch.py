"""Fetching the default model as a job: progress, stopping, and failing in one sentence."""

import pytest

from bastion.errors import UserError
from bastion.jobs.fetching import run_fetch
from bastion.jobs.job import Job


def test_progress_comes_in_words_with_a_share_and_an_estimate(tmp_path):
    seen = []

    def fetch(source, progress):
        assert source is None
        progress("Downloading, 40 of 93 MB", 0.4)
        seen.append(job.view().progress)
        return tmp_path

    job = Job("fetch")
    run_fetch(job, fetch)
    assert (seen[0].words, seen[0].share) == ("Downloading, 40 of 93 MB", 0.4) and seen[0].seconds_left >= 0
    assert job.view().state == "done" and job.view().progress.words == "The default model is ready"
    assert [e.data["state"] for e in job.log.since(0) if e.kind == "state"] == ["fetching model", "done"]


def test_stopping_interrupts_the_download_where_it_reports():
    after = []

    def fetch(source, progress):
        job.ask_to_stop()
        progress("Downloading", 0.1)
        after.append("went on")

    job = Job("fetch")
    run_fetch(job, fetch)
    assert job.view().state == "cancelled" and not after


@pytest.mark.parametrize(("error", "words"), [
    (UserError("No network: run `python -m bastion fetch` later."), "No network: run `python -m bastion fetch` later."),
    (RuntimeError("disk on fire"), "The default model could not be fetched (RuntimeError); the log of the server has "
                                   "the details, and `python -m bastion fetch` tries again."),
])
def test_a_failed_fetch_says_one_sentence(error, words):
    def fetch(source, progress):
        raise error

    job = Job("fetch")
    run_fetch(job, fetch)
    assert (job.view().state, job.view().error) == ("failed", words)
