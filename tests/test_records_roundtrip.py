"""Any record that holds together is read back exactly: values, types, shapes, NaN, absent parts."""

import tempfile

import numpy as np
from hypothesis import HealthCheck, given, settings, strategies as st
from hypothesis.extra import numpy as arrays

from bastion.records import RunStore
from bastion.step import GrowthLog, StepRecord, StepSeconds, StepTrace
from tests.synthetic_runs import make_info, make_prefill, same_step, text_of

IDS = st.integers(0, 2**31 - 1)
FLOATS = st.floats(width=64)
MAYBE = st.none() | FLOATS


def float_array(kind, shape):
    width = np.dtype(kind).itemsize * 8
    return arrays.arrays(kind, shape, elements=st.floats(width=width))


def id_array(shape):
    return arrays.arrays(np.int64, shape, elements=IDS)


@st.composite
def growth_logs(draw):
    pops = draw(st.integers(0, 5))
    return GrowthLog(
        token_ids=draw(id_array(pops)),
        parents=np.array([draw(st.integers(0, row)) for row in range(pops)], np.int64),
        depths=draw(id_array(pops)), ranks=draw(id_array(pops)),
        path_log_probs=draw(float_array(np.float64, pops)),
        gains=draw(float_array(np.float64, pops)), prices=draw(float_array(np.float64, pops)),
        bought=draw(arrays.arrays(bool, pops)), dropped=draw(arrays.arrays(bool, pops)))


@st.composite
def traces(draw, nodes):
    shape = draw(st.tuples(st.integers(0, 3), st.integers(0, 4)))
    choices = draw(st.integers(0, 3))
    return StepTrace(
        marginal_token_ids=draw(id_array(shape)),
        marginal_log_probs=draw(float_array(np.float32, shape)),
        target_log_probs=draw(float_array(np.float32, nodes)),
        target_top_ids=draw(id_array((nodes, choices))),
        target_top_log_probs=draw(float_array(np.float32, (nodes, choices))),
        growth=draw(st.none() | growth_logs()),
        predicted_seconds=draw(float_array(np.float64, draw(st.integers(0, 4)))),
        predicted_draft_seconds=draw(MAYBE), predicted_other_seconds=draw(MAYBE))


@st.composite
def decode_records(draw, index):
    nodes = draw(st.integers(1, 6))
    parents = np.array([-1] + [draw(st.integers(0, i - 1)) for i in range(1, nodes)], np.int64)
    depths = np.zeros(nodes, np.int64)
    for node in range(1, nodes):
        depths[node] = depths[parents[node]] + 1
    path, node = [], draw(st.integers(0, nodes - 1))
    while node >= 0:
        path.append(node)
        node = int(parents[node])
    accepted = np.array(path[::-1], np.int64)
    token_ids, bonus = draw(id_array(nodes)), draw(IDS)
    output = token_ids[accepted[1:]].tolist() + [bonus]
    emitted = output[:draw(st.integers(0, len(output)))]
    return StepRecord(
        index=index, kind="decode", emitted=emitted, context=draw(IDS), root=draw(IDS),
        token_ids=token_ids, parents=parents, depths=depths,
        path_log_probs=draw(float_array(np.float64, nodes)), accepted=accepted, bonus=bonus,
        surrogate=draw(FLOATS), stop_reason=draw(st.text(max_size=8)),
        seconds=StepSeconds(*(draw(FLOATS) for _ in range(4))),
        top2_gaps=draw(float_array(np.float32, len(emitted))),
        predicted_verify_seconds=draw(MAYBE), trace=draw(st.none() | traces(nodes)))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_round_trip(data):
    records = [make_prefill(data.draw(st.integers(0, 5)))]
    records += [data.draw(decode_records(index))
                for index in range(1, data.draw(st.integers(1, 4)))]
    with tempfile.TemporaryDirectory() as folder:
        store = RunStore(folder)
        writer = store.create(make_info(), text_of=text_of)
        for record in records:
            writer.append(record)
        partial = store.open(writer.id)
        writer.finish("length")
        whole = store.open(writer.id)
    for run in (partial, whole):
        assert len(run.steps) == len(records)
        assert all(map(same_step, run.steps, records))
        assert run.pieces == partial.pieces


def test_same_step_sees_every_kind_of_difference():
    """The comparison the tests above rest on is not blind."""
    one = make_prefill(1)
    assert same_step(one, make_prefill(1)) and not same_step(one, make_prefill(2))
    from dataclasses import replace
    assert not same_step(one, replace(one, accepted=one.accepted.astype(np.int32)))
    assert not same_step(one, replace(one, surrogate=1e-300))
    assert not same_step(one, replace(one, predicted_verify_seconds=0.0))
    assert not same_step(one, replace(one, seconds=StepSeconds()))
    nan = replace(one, surrogate=float("nan"))
    assert same_step(nan, replace(one, surrogate=float("nan"))) and not same_step(nan, one)
