"""The event log and the worker: order, positions, removal, and a task that raises."""

import threading

import pytest

from bastion.errors import UserError
from bastion.jobs import EXAMPLES, DecodeRequest
from bastion.jobs.log import EventLog
from bastion.jobs.worker import DeviceWorker


def test_a_reader_gets_every_event_once_and_in_order_while_many_threads_write():
    log, seen = EventLog(), []
    writers = [threading.Thread(target=lambda k=k: [log.add("x", (k, i)) for i in range(200)]) for k in range(4)]
    for writer in writers:
        writer.start()
    while len(seen) < 800:
        seen += log.since(len(seen))
    for writer in writers:
        writer.join()
    assert [event.number for event in seen] == list(range(800))
    for k in range(4):
        assert [event.data[1] for event in seen if event.data[0] == k] == list(range(200))
    assert log.since(800) == [] and [e.number for e in log.since(798)] == [798, 799]
    assert log.since(-5) == seen


def test_tasks_run_in_the_order_they_came_and_know_how_many_are_ahead():
    worker, gate, started, order = DeviceWorker("test"), threading.Event(), threading.Event(), []

    def first():
        started.set()
        gate.wait(10)
        order.append("first")

    def second(): order.append("second")
    def third(): order.append("third")
    def fourth(): order.append("fourth")

    worker.put(first)
    assert started.wait(10)
    for task in (second, third, fourth):
        worker.put(task)
    assert [worker.ahead(t) for t in (first, second, third, fourth)] == [0, 1, 2, 3]
    assert worker.waiting() == 4
    assert worker.remove(third) and not worker.remove(third) and not worker.remove(first)
    assert worker.ahead(fourth) == 2
    done = threading.Event()
    worker.put(done.set)
    gate.set()
    assert done.wait(10)
    assert order == ["first", "second", "fourth"]
    worker.close(10)


def test_a_task_that_raises_does_not_end_the_worker(caplog):
    worker, done = DeviceWorker("test"), threading.Event()

    def broken():
        raise RuntimeError("boom")

    worker.put(broken)
    worker.put(done.set)
    assert done.wait(10)
    assert "boom" in caplog.text
    worker.close(10)


@pytest.mark.parametrize(("change", "words"), [
    ({"prompt": "  \n "}, "prompt is empty"),
    ({"prompt": "x" * 200_001}, "200,001 characters"),
    ({"temperature": -0.1}, "Temperature"),
    ({"temperature": float("nan")}, "Temperature"),
    ({"top_p": 0.0}, "Top-p"),
    ({"top_p": 1.01}, "Top-p"),
    ({"top_k": -1}, "Top-k"),
    ({"max_new_tokens": 0}, "1 new token"),
    ({"seed": -1}, "seed"),
    ({"min_nodes": 0}, "at least 1 node"),
    ({"min_nodes": 9, "max_nodes": 8}, "must not be smaller"),
])
def test_a_bad_request_is_refused_in_words(change, words):
    with pytest.raises(UserError, match=words):
        DecodeRequest(**{"prompt": "Hello", **change}).check()


def test_examples_are_eight_and_can_all_be_asked():
    assert len(EXAMPLES) == 8 and len({e.name for e in EXAMPLES}) == 8
    for example in EXAMPLES:
        DecodeRequest(example.prompt).check()
