"""Comparing methods: what is read, in which order it runs, and the arithmetic of a row."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bastion.errors import UserError
from bastion.jobs.compare import compare_methods, first_difference, means_over_sets, near_ties
from bastion.jobs.prompt_files import Conversation, PromptSet, read_prompt_set, split_methods
from bastion.step import StepRecord, StepSeconds


def record(index: int, emitted: list[int], nodes: int, seconds: float, gaps: list[float] | None = None) -> StepRecord:
    nothing = np.zeros(0)
    return StepRecord(index=index, kind="decode" if index else "prefill", emitted=emitted, context=0, root=0,
                      token_ids=np.zeros(nodes, dtype=np.int64), parents=nothing, depths=nothing, path_log_probs=nothing,
                      accepted=nothing, bonus=0, surrogate=1.0, stop_reason="", seconds=StepSeconds(verify=seconds),
                      top2_gaps=np.array(gaps if gaps is not None else [1.0] * len(emitted), dtype=np.float32))


class Decoder:
    """Decodes by looking up what each method says; remembers the order of calls."""

    def __init__(self, outcomes: dict[str, list[StepRecord]]) -> None:
        self.outcomes = outcomes
        self.calls: list[tuple[str, str]] = []
        self.heard: list[list[dict[str, str]]] = []

    def __call__(self, messages, method, tokens):
        if tokens is None:
            self.calls.append((messages[-1]["content"], method))
            self.heard.append(messages)
        return self.outcomes[method]


AR = [record(0, [5], 0, 9.0), record(1, [6], 1, 0.5), record(2, [7], 1, 0.5), record(3, [8], 1, 1.0)]
TREE = [record(0, [5], 0, 9.0), record(1, [6, 7], 10, 0.6), record(2, [8], 20, 0.4)]


def sets(*names: str) -> list[PromptSet]:
    return [PromptSet(name, tuple(Conversation(f"{name}-{i}", (f"{name} {i}",)) for i in range(2))) for name in names]


def test_rows_hold_tokens_per_step_and_per_second_without_the_prefill():
    rows = compare_methods(Decoder({"ar": AR, "bastion": TREE}), str, sets("s"), ["ar", "bastion"], greedy=True)
    plain, tree = rows
    assert [row["method"] for row in rows] == ["ar", "bastion"]
    assert (plain["tau"], plain["tokens_per_second"], plain["speedup"], plain["nodes_mean"]) == (1.0, 1.5, 1.0, 1.0)
    assert (tree["tau"], tree["tokens_per_second"], tree["speedup"], tree["nodes_mean"]) == (1.5, 3.0, 2.0, 15.0)
    assert all((row["prompts"], row["identical_to_ar"], row["differences"]) == (2, 2, []) for row in rows)
    assert (tree["tokens"], tree["steps"], tree["seconds_prefill"]) == (6, 4, 18.0)


def test_prompts_are_interleaved_and_the_order_turns():
    decoder = Decoder({"ar": AR, "dflash": TREE, "bastion": TREE})
    compare_methods(decoder, str, sets("a", "b"), ["ar", "dflash", "bastion"], greedy=True)
    assert decoder.calls == [("a 0", "ar"), ("a 0", "dflash"), ("a 0", "bastion"),
                             ("a 1", "dflash"), ("a 1", "bastion"), ("a 1", "ar"),
                             ("b 0", "bastion"), ("b 0", "ar"), ("b 0", "dflash"),
                             ("b 1", "ar"), ("b 1", "dflash"), ("b 1", "bastion")]


def test_every_prompt_set_has_its_rows_and_ar_is_measured_even_when_not_asked_for():
    rows = compare_methods(Decoder({"ar": AR, "bastion": TREE}), str, sets("a", "b"), ["bastion"], greedy=True)
    assert [(row["prompt_set"], row["method"]) for row in rows] == [("a", "ar"), ("a", "bastion"), ("b", "ar"), ("b", "bastion")]


def test_a_prompt_that_differs_is_named_with_place_and_gap():
    reference = [record(0, [5], 0, 1.0, [3.0]), record(1, [6, 7], 2, 1.0, [2.0, 0.25]), record(2, [8], 1, 1.0, [1.0])]
    other = [record(0, [5], 0, 1.0), record(1, [6], 1, 1.0), record(2, [9, 8], 1, 1.0)]
    rows = compare_methods(Decoder({"ar": reference, "bastion": other}), str, sets("s"), ["ar", "bastion"], greedy=True)
    assert rows[1]["identical_to_ar"] == 0
    assert rows[1]["differences"] == [{"prompt": f"s-{i}", "turn": 0, "position": 2, "top2_gap": 0.25} for i in range(2)]
    assert rows[0]["differences"] == []


def test_an_output_that_ends_early_or_goes_on_differs_at_the_end():
    longer, shorter = [record(0, [1, 2, 3], 0, 1.0, [1.0, 2.0, 4.0])], [record(0, [1, 2], 0, 1.0)]
    assert first_difference(longer, shorter) == {"position": 2, "top2_gap": 4.0}
    assert first_difference(shorter, longer) == {"position": 2, "top2_gap": None}
    assert first_difference(longer, longer) is None


@given(st.lists(st.integers(0, 3), max_size=6), st.lists(st.integers(0, 3), max_size=6))
def test_the_first_difference_is_where_the_common_beginning_ends(left, right):
    difference = first_difference([record(0, left, 0, 1.0)], [record(0, right, 0, 1.0)])
    if left == right:
        assert difference is None
    else:
        position = difference["position"]
        assert left[:position] == right[:position] and left[position:position + 1] != right[position:position + 1]


def test_later_turns_hear_the_answer_of_plain_decoding():
    decoder = Decoder({"ar": AR, "bastion": TREE})
    conversation = Conversation("two", ("first", "second"))
    rows = compare_methods(decoder, lambda ids: f"answer {ids}", [PromptSet("s", (conversation,))], ["ar", "bastion"], greedy=True)
    assert decoder.heard[-1] == [{"role": "user", "content": "first"}, {"role": "assistant", "content": "answer [5, 6, 7, 8]"},
                                 {"role": "user", "content": "second"}]
    assert rows[1]["prompts"] == 1 and rows[1]["tokens"] == 6


def test_samples_are_not_held_against_plain_decoding():
    rows = compare_methods(Decoder({"ar": AR, "bastion": AR[:2]}), str, sets("s"), ["ar", "bastion"], greedy=False)
    assert rows[1]["identical_to_ar"] is None and rows[1]["differences"] == []


@pytest.mark.parametrize(("text", "names"), [
    ("ar,dflash,ddtree:16,bastion", ["ar", "dflash", "ddtree:16", "bastion"]),
    ("specinfer:4,2,2,1", ["specinfer:4,2,2,1"]),
    ("ar, specinfer:4,2,2,1 ,beam:8", ["ar", "specinfer:4,2,2,1", "beam:8"]),
    ("small-lm:8,eagle3:16,", ["small-lm:8", "eagle3:16"]),
    ("ar,ar,bastion", ["ar", "bastion"]),
])
def test_a_comma_parts_methods_only_before_a_letter(text, names):
    assert split_methods(text) == names


@pytest.mark.parametrize("text", ["", " , ,"])
def test_no_method_is_bad_input(text):
    with pytest.raises(UserError, match="at least one method"):
        split_methods(text)


def test_prompt_files_hold_turns_or_prompts(tmp_path):
    file = tmp_path / "mine.jsonl"
    file.write_text("\n".join([json.dumps({"id": "x", "turns": ["one\u2028line", "two"]}), "", json.dumps({"prompt": "three"})]) + "\n",
                    encoding="utf-8")
    assert read_prompt_set(file) == PromptSet("mine", (Conversation("x", ("one\u2028line", "two")), Conversation("3", ("three",))))
    assert len(read_prompt_set(file, limit=1).conversations) == 1


@pytest.mark.parametrize(("content", "words"), [
    (b"", "holds no prompt"),
    (b"\n\n", "holds no prompt"),
    (b"{\"prompt\": \"a\"}\nnot json", "line 2 is not JSON"),
    (b"[1]", "line 1 needs"),
    (b"{\"turns\": []}", "line 1 needs"),
    (b"{\"turns\": [\"a\", 1]}", "line 1 needs"),
    (b"{\"prompt\": \"  \"}", "line 1 needs"),
    (b"{\"prompt\": \"\xff\"}", "not UTF-8"),
])
def test_bad_prompt_files_are_named_with_their_line(tmp_path, content, words):
    file = tmp_path / "bad.jsonl"
    file.write_bytes(content)
    with pytest.raises(UserError, match=words) as caught:
        read_prompt_set(file)
    assert "bad.jsonl" in str(caught.value)


def test_a_missing_prompt_file_is_named(tmp_path):
    with pytest.raises(UserError, match="nowhere.jsonl cannot be read"):
        read_prompt_set(tmp_path / "nowhere.jsonl")


def test_a_shuffled_order_is_drawn_anew_for_every_prompt_and_repeat():
    decoder = Decoder({"ar": AR, "dflash": TREE, "bastion": TREE, "beam:8": TREE})
    names = ["ar", "dflash", "bastion", "beam:8"]
    compare_methods(decoder, str, sets("a", "b", "c"), names, greedy=True, order="shuffled", repeats=2)
    rounds = [[method for _, method in decoder.calls[start:start + 4]] for start in range(0, len(decoder.calls), 4)]
    assert len(rounds) == 12 and all(sorted(one) == sorted(names) for one in rounds)
    assert [prompt for prompt, _ in decoder.calls[::4]] == [f"{name} {i}" for name in "abc" for i in (0, 0, 1, 1)]
    assert len(set(map(tuple, rounds))) > 3


def test_repeats_sum_times_and_count_a_prompt_once():
    once, thrice = (compare_methods(Decoder({"ar": AR, "bastion": TREE[:2]}), str, sets("s"), ["ar", "bastion"], greedy=True, repeats=n) for n in (1, 3))
    for one, more in zip(once, thrice, strict=True):
        assert (more["tokens"], more["steps"], more["seconds_decode"]) == pytest.approx([3 * one[key] for key in ("tokens", "steps", "seconds_decode")])
        for key in ("prompts", "tau", "tokens_per_second", "speedup", "identical_to_ar", "differences"):
            assert more[key] == pytest.approx(one[key]) if isinstance(one[key], float) else more[key] == one[key], key


def refusing(*methods):
    """Decodes as `Decoder` does, but for some methods, which no pair can run."""
    decoder = Decoder({"ar": AR, "bastion": TREE})

    def decode(messages, method, tokens):
        if method in methods:
            raise UserError(f"The method {method} needs an EAGLE-3 head.")
        return decoder(messages, method, tokens)

    return decode, decoder


def test_a_method_that_cannot_run_says_so_and_the_others_are_measured():
    decode, decoder = refusing("eagle3:16")
    said = []
    rows = compare_methods(decode, str, sets("a", "b"), ["ar", "eagle3:16", "bastion"], greedy=True, say=lambda words, share: said.append(words))
    assert [(row["prompt_set"], row["method"], row["refused"] is None) for row in rows] == [
        ("a", "ar", True), ("a", "eagle3:16", False), ("a", "bastion", True), ("b", "ar", True), ("b", "eagle3:16", False), ("b", "bastion", True)]
    assert rows[1]["refused"] == "The method eagle3:16 needs an EAGLE-3 head." and rows[1]["tau"] is None and rows[1]["prompts"] == 0
    assert rows[2]["speedup"] == 2.0 and {method for _, method in decoder.calls} == {"ar", "bastion"}
    assert said.index("eagle3:16 is left out: The method eagle3:16 needs an EAGLE-3 head.") < said.index("a: prompt a-0")
    assert [mean["method"] for mean in means_over_sets(rows)] == ["ar", "bastion"]


@pytest.mark.parametrize("methods", [["eagle3:16"], ["ar", "eagle3:16", "small-lm:4"]])
def test_when_no_method_but_the_yardstick_can_run_nothing_is_measured(methods):
    decode, decoder = refusing("eagle3:16", "small-lm:4")
    with pytest.raises(UserError, match="eagle3:16 needs an EAGLE-3 head"):
        compare_methods(decode, str, sets("a"), methods, greedy=True)
    assert decoder.calls == []


def test_prompts_that_part_at_a_tie_are_counted_apart():
    found = [{"prompt": "a", "top2_gap": 5e-4}, {"prompt": "b", "top2_gap": 0.2}, {"prompt": "c", "top2_gap": None},
             {"prompt": "d", "top2_gap": 1e-4}, {"prompt": "d", "top2_gap": 0.3}]
    assert near_ties(found) == 1 and near_ties([]) == 0


def test_means_over_sets():
    rows = [{"method": "bastion", "refused": None, "tau": tau, "tokens_per_second": 10.0, "speedup": speed, "nodes_mean": 8.0, "prompts": 2,
             "identical_to_ar": 2, "near_ties": 0} for tau, speed in ((2.0, 1.2), (3.0, None))]
    assert means_over_sets(rows) == [{"method": "bastion", "sets": 2, "tau": 2.5, "tokens_per_second": 10.0, "speedup": 1.2, "nodes_mean": 8.0,
                                      "prompts": 4, "identical_to_ar": 4, "near_ties": 0}]
