"""Masks to turns and spans, and a watch that rings once, writes a run folder and goes on."""

import pytest
import torch

from lldlib.adapters.watch import (
    PHASES,
    Probe,
    Seen,
    Watch,
    episode_record,
    given_spans,
    measure,
    read_spans,
    tool_results,
)
from lldlib.adapters.watch import runs as runs_of
from lldlib.runs.folder import Run
from lldlib.runs.glossary import describe
from lldlib.types import Span

WORDS = ["<search>", "x", "</search>", "<answer>", "y", "</answer>", "<information>", "z", "hm"]
CONFIG = {"method": "llds", "seed": 0}


def text(tokens) -> str:
    return " ".join(WORDS[token] for token in tokens)


def test_runs_of_a_mask():
    assert runs_of([True, True, False, True]) == [(0, 2), (3, 4)]
    assert runs_of([False, False]) == [] and runs_of([]) == []


def test_spans_are_read_off_the_policys_tokens_alone():
    # hm <search> x </search> | <answer> y </answer> retrieved | hm <answer> y </answer>
    tokens = torch.tensor([[8, 0, 1, 2, 3, 4, 5, 8, 3, 4, 5], [3, 4, 5, 6, 7, 8, 8, 8, 8, 8, 8]])
    mask = torch.tensor([[1, 1, 1, 1, 0, 0, 0, 1, 1, 1, 1], [1, 1, 1] + [0] * 8]).bool()
    labels, searches = read_spans(tokens, mask, WORDS.__getitem__)
    free, query, answer, none = (int(Span[n]) for n in ("FREE", "QUERY", "ANSWER", "NONE"))
    assert labels[0].tolist() == [free] + [query] * 3 + [none] * 3 + [free] + [answer] * 3
    assert labels[1].tolist() == [answer] * 3 + [none] * 8
    assert searches == [1, 0]
    empty = torch.tensor([[0, 2, 3, 4, 5]])  # a search without a query is none
    assert read_spans(empty, torch.ones_like(empty).bool(), WORDS.__getitem__)[1] == [0]
    told = [labels[0].tolist(), [answer] * 3]  # a rollout gives them without padding
    assert given_spans(told, tokens).tolist() == labels.tolist()


def test_results_of_tools_are_counted_inside_the_completion():
    # call, result, call, result, answer | an answer, then padding, where TRL's tool_mask is 1 |
    # a result that padding follows | a masked completion
    whole = torch.tensor([[1] * 8, [1] * 3 + [0] * 5, [1] * 4 + [0] * 4, [0] * 8])
    own = torch.tensor([[1, 0, 0, 1, 1, 0, 1, 1], [1] * 8, [1, 1, 0, 0, 1, 1, 1, 1], [0] * 8])
    assert tool_results(whole, own) == [2, 0, 1, 0]


def test_an_episode_is_told_turn_by_turn():
    tokens, mask = [0, 1, 2, 6, 7, 3, 4, 5], [True] * 3 + [False] * 2 + [True] * 3
    told = episode_record([8], tokens, mask, [-1.0] * 8, 1.0, text)
    assert [turn["role"] for turn in told["turns"]] == ["prompt", "action", "environment", "action"]
    assert told["answer"] == "y" and told["question"] == "hm" and told["reward"] == 1.0
    assert told["turns"][3] == {
        "role": "action",
        "text": "<answer> y </answer>",
        "logp": [-1.0] * 3,
    }
    cut = episode_record([8], tokens[:5], mask[:5], [-1.0] * 5, 0.0, text)
    assert cut["answer"] is None and cut["turns"][-1]["role"] == "environment"


def seen(change: float) -> Seen:
    """Two rows of two tokens, the first correct; every token moves by `change`."""
    old = torch.full((2, 2), -1.0)
    return Seen(
        logp=old,
        new_logp=old + change,
        rewards=torch.tensor([1.0, 0.0]),
        advantages=torch.tensor([1.0, -1.0]),
        action_mask=torch.ones(2, 2, dtype=torch.bool),
        proxy_logp=None,
        quantile=0.5,
        selection="paper",
    )


def test_what_is_measured_is_in_the_glossary():
    mask = torch.ones(1, 3, dtype=torch.bool)
    probe = Probe(torch.tensor([[-1.0, -2.0, -3.0]]), mask, torch.tensor([[1, 2, 3]]))
    row = measure(seen(-0.25), probe)
    assert row["displacement/correct_token"] == pytest.approx(-0.25)
    assert row["displacement/correct"] == pytest.approx(-0.5)
    assert row["displacement/all_token"] == row["displacement/mixed_token"] == -0.25
    assert row["likelihood/incorrect"] == -1.0 and row["length/tokens"] == 2.0
    assert row["likelihood/official"] == -0.5  # 2 of 4 tokens are in the row with A >= 0
    assert row["probe/content"] == -2.5 and row["probe/free"] == -1.0
    assert all(describe(key) for key in row)


def test_the_alarm_rings_once_and_the_run_goes_on(tmp_path):
    # AlarmRule: a batch may cost its correct responses 0.45 nats per token
    watch = Watch(tmp_path)
    watch.open(CONFIG, None)
    row = {"reward/mean": 0.5} | measure(seen(-0.44), None)
    told = [watch.batch(index, row)["alarm"] for index in range(8)]
    row = {"reward/mean": 0.5} | measure(seen(-0.46), None)
    told.append(watch.batch(8, row)["alarm"])
    watch.close()
    assert told == [0.0] * 8 + [1.0]
    again = Watch(tmp_path)
    again.open(CONFIG, 9)
    assert again.batch(9, row) == {"phase": PHASES.index("steady"), "alarm": 1.0}
    again.close()
    run = Run(tmp_path)
    assert [event["step"] for event in run.events if event["kind"] == "alarm"] == [8]
    assert [row["step"] for row in run.metrics] == list(range(10))


def test_a_lost_reward_is_the_last_phase():
    watch = Watch(None)
    watch.open(CONFIG, None)
    for index in range(40):
        told = watch.batch(index, {"reward/mean": 0.8 if index < 20 else 0.0})
    assert told["phase"] == PHASES.index("collapse") == 4


def test_a_run_is_not_written_over(tmp_path):
    Watch(tmp_path).open(CONFIG, None)
    with pytest.raises(FileExistsError, match="already holds a run"):
        Watch(tmp_path).open(CONFIG, None)
