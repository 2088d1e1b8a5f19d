"""The pieces of the bench run and compare like with like; no test looks at a speed."""

import dataclasses
import json
import subprocess
import sys
from contextlib import contextmanager

import pytest
import torch
from bench import __main__ as bench_main
from bench import overhead, rollouts, starting, steps, trl_worker
from bench.search_r1 import SearchR1Loop
from bench.timing import Measurement, quartiles, table
from bench.trainer import TimedTrainer
from bench.workload import Workload, all_tokens, policy_tokens
from helpers import character_policy, retriever, tiny_policy, world_questions
from torch import Tensor, nn

from lldlib.config import RolloutConfig
from lldlib.recipes import METHODS
from lldlib.rollout.loop import Rollout
from lldlib.types import Episode, Question, Span, StopReason, Turn
from lldlib.world.environment import RULES

EPISODE = Episode(
    Question("q", "Who ?", ("Ada",)),
    [
        Turn.given("prompt", [5, 6]),
        Turn("action", [7, 8, 9], [-1.0] * 3, [Span.QUERY] * 3),
        Turn.given("environment", [3]),
        Turn("action", [4, 2], [-1.0] * 2, [Span.ANSWER] * 2),
    ],
    StopReason.ANSWER,
    "Ada",
    valid_searches=1,
    invalid_actions=0,
    reward=1.0,
    group=0,
)


@pytest.fixture
def work(micro) -> Workload:
    return Workload.make(**micro)


def test_the_bench_asks_trl_for_equal_updates():
    work = Workload.make("tiny", **bench_main.SIZE)
    assert work.rows % work.config.updates_per_batch == 0


class RestlessHead(nn.Module):
    """Adds to every logit a wave of the hidden state, so that greedy episodes wander and end."""

    def __init__(self, head: nn.Linear):
        super().__init__()
        self.bias = torch.zeros(len(head.weight))
        self.head, self.weight = head, head.weight
        random = torch.Generator().manual_seed(0)
        self.waves = torch.randn(head.weight.T.shape, generator=random, dtype=head.weight.dtype)

    def forward(self, hidden: Tensor) -> Tensor:
        """Logits of the hidden states."""
        return self.head(hidden) + self.bias + 20 * torch.sin(100 * hidden @ self.waves)


def test_both_loops_play_the_same_greedy_episodes():
    policy = tiny_policy()
    policy.model.double()  # else rounding, which differs between the two, could turn a wave
    policy.model.lm_head = RestlessHead(policy.model.lm_head)
    questions, stops, searches, invalid = world_questions(24), set(), 0, 0
    for max_tokens, max_searches, quitting in ((160, 3, 0), (160, 3, 16), (40, 2, 0), (10, 1, 0)):
        policy.model.lm_head.bias[policy.tokenizer.eos_token_id] = quitting
        config = RolloutConfig(max_tokens=max_tokens, max_searches=max_searches)
        parts = (policy.tokenizer, RULES["qa"], retriever(), config)
        ours = Rollout(*parts).run(policy.model, questions, temperature=0.0)
        theirs = SearchR1Loop(*parts).run(policy.model, questions, temperature=0.0)
        assert [story(e) for e in ours] == [story(e) for e in theirs]
        stops |= {e.stop for e in ours}
        searches += sum(e.valid_searches for e in ours)
        invalid += sum(e.invalid_actions for e in ours)
    assert stops == set(StopReason) - {StopReason.TOOL_ERROR} and searches and invalid


def story(episode: Episode) -> tuple:
    """All that happened, without the log-probs, which the loop does not keep."""
    turns = [(turn.role, turn.tokens) for turn in episode.turns]
    counts = (episode.valid_searches, episode.invalid_actions)
    return turns, episode.stop, episode.answer, counts


def test_a_sampled_episode_of_the_loop_holds_its_budgets():
    policy = tiny_policy()
    config = RolloutConfig(max_tokens=60, max_searches=1)
    loop = SearchR1Loop(policy.tokenizer, RULES["qa"], retriever(), config)
    torch.manual_seed(0)
    episodes = loop.run(policy.model, world_questions(16), temperature=1.0)
    assert all(all_tokens([e]) <= 60 for e in episodes)
    assert all(e.valid_searches + e.invalid_actions <= 2 for e in episodes)  # 1, and the last turn
    assert any(turn.role == "environment" for e in episodes for turn in e.turns)


def test_the_loop_wants_tags_that_are_tokens():
    policy = character_policy()
    with pytest.raises(ValueError, match="not one token"):
        SearchR1Loop(policy.tokenizer, RULES["qa"], retriever(), RolloutConfig())


def test_tokens_are_counted_by_author():
    assert policy_tokens([EPISODE, EPISODE]) == 10  # (3 + 2) twice
    assert all_tokens([EPISODE]) == 8  # 2 + 3 + 1 + 2


def test_completions_for_trl_mask_what_the_environment_said():
    result = trl_worker.completions([EPISODE])
    assert result == {
        "prompt_ids": [[5, 6]],
        "completion_ids": [[7, 8, 9, 3, 4, 2]],
        "env_mask": [[1, 1, 1, 0, 1, 1]],
        "episode_reward": [1.0],
        "logprobs": None,
    }


def test_trl_gets_the_same_number_of_updates(work):
    given = trl_worker.settings(work.config)
    assert given["per_device_train_batch_size"] == 4  # 4 x 2 rows in 2 updates
    assert given["steps_per_generation"] == 2 and given["num_generations"] == 2
    assert given["learning_rate"] == work.config.lr and given["beta"] == work.config.loss.kl_coef


def test_trl_needs_an_even_split(micro):
    work = Workload.make(**(micro | {"updates_per_batch": 3}))
    with pytest.raises(ValueError, match="8 rows do not split into 3"):
        trl_worker.settings(work.config)


def test_questions_of_a_workload_are_the_same_every_time(work, micro):
    again = Workload.make(**micro)
    assert work.batches(2) == again.batches(3)[:2]
    assert [len(set(batch)) for batch in work.batches(2)] == [4, 4]
    first, second = work.batches(1)[0][:2]
    assert work.wider(3).rows == 3 * work.rows == 3 * 8
    assert work.repeated([first, second]) == [first, first, second, second]


def test_rollouts_are_measured(work):
    ratios, text = rollouts.measure(work, 2)
    assert [len(m.ratios) for m in ratios] == [2, 2] and all(
        r > 0 for m in ratios for r in m.ratios
    )
    assert "| mean reward |" in text and "| policy tokens a second |" in text


def test_arms_are_compared_question_by_question():
    # means of two rollouts per question: 1, 4 and 7 against 1, 2 and 6. The gaps 0, 2, 1 have mean
    # 1, variance 1 and standard error 1 / sqrt(3)
    ours, theirs = [0.0, 2.0, 4.0, 4.0, 7.0, 7.0], [1.0, 1.0, 2.0, 2.0, 5.0, 7.0]
    assert rollouts.distance(ours, theirs, 2) == pytest.approx(3**0.5)
    assert rollouts.distance(ours, ours, 2) == 0.0


def test_overheads_are_measured_from_the_same_weights(work):
    before = {k: v.clone() for k, v in work.policy.model.state_dict().items()}
    ratios = overhead.measure(work, 2)
    assert [len(m.ratios) for m in ratios] == [2] * 4
    assert [m.aim for m in ratios] == [0.01, 0.05, None, None]
    compared = overhead.compare(work, 2)
    assert [len(m.ratios) for m in compared] == [2] * (len(METHODS) - 1)
    assert all(min(m.ratios) > 0 for m in compared)
    assert [m.what.split()[3] for m in compared] == [f"{m}," for m in METHODS if m != "grpo"]
    after = work.policy.model.state_dict()
    assert all(torch.equal(before[k], after[k]) for k in before)


def test_a_timed_step_trains_on_what_it_is_handed(work):
    trainer = TimedTrainer(work)
    episodes, batch = trainer.roll_out()
    mixed = torch.tensor([1.0, 0.0] * 4)  # else a batch of equal rewards would move nothing
    trainer.handed = episodes, dataclasses.replace(batch, rewards=mixed)
    first = next(iter(trainer.start))
    _, episodes = trainer.timed_step()
    assert episodes is trainer.handed[0] and trainer.measuring > 0
    moved = trainer.state()[0]
    assert not torch.equal(moved[first], trainer.start[first])
    trainer.restart(3)
    assert torch.equal(trainer.state()[0][first], trainer.start[first]) and trainer.step_index == 3


def test_steps_are_paired_with_those_of_trl(work, monkeypatch):
    class Stub:
        asked = 0

        def step(self):
            self.asked += 1
            return {"seconds": 100.0, "rollout": 40.0, "reward": 0.5, "tokens": 9.0}

    stub = Stub()
    monkeypatch.setattr(steps, "environment", lambda: "python")
    monkeypatch.setattr(steps, "worker", contextmanager(lambda *_: iter([stub])))
    ratios, text = steps.measure(work, 2)
    assert stub.asked == 3  # one to warm up
    assert [len(m.ratios) for m in ratios] == [2] * 4
    whole, logged = ratios[0], ratios[1]
    assert all(a > b for a, b in zip(whole.ratios, logged.ratios, strict=True))
    assert "| reward |" in text and "| 0.500 |" in text


def test_a_dead_trl_process_is_told_with_its_last_line(tmp_path):
    log = tmp_path / "log"
    log.write_text("first\nImportError: no trl\n")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with (
        subprocess.Popen([sys.executable, "-c", "input()"], **pipes) as process,
        pytest.raises(RuntimeError, match="ImportError: no trl"),
    ):
        steps.Worker(process, log).step()


def test_an_answer_of_trl_is_read(tmp_path):
    code = "input(); print('{\"seconds\": 2.0}', flush=True)"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as process:
        assert steps.Worker(process, tmp_path / "log").step() == json.loads('{"seconds": 2.0}')


def test_the_environment_is_made_once(tmp_path, monkeypatch):
    calls = []

    def run(command, check):
        calls.append([str(word) for word in command])
        tmp_path.joinpath("venv").mkdir(exist_ok=True)

    monkeypatch.setattr(steps.subprocess, "run", run)
    python = steps.environment(tmp_path / "venv")
    assert steps.environment(tmp_path / "venv") == python  # the second time it is there
    assert len(calls) == 2 and "trl==1.16.0" in calls[1]
    assert sum(word.startswith("torch==") for word in calls[1]) == 1


def test_a_row_shows_median_quartiles_and_verdict():
    # 1, 2, 3, 6: median 2.5, quartiles at 1.75 and 3.75
    fast = Measurement("speed", [3.0, 1.0, 6.0, 2.0], 3.0)
    assert fast.row() == "| speed | 2.50x | 1.75x to 3.75x | ≥ 3.00x | NO | 4 |"
    cheap = Measurement("cost", [0.004], 0.01, overhead=True)
    assert cheap.row() == "| cost | 0.40 % | 0.40 % to 0.40 % | ≤ 1.00 % | yes | 1 |"
    assert Measurement("other", [2.0]).met is None
    assert quartiles([5.0]) == (5.0, 5.0, 5.0)
    assert len(table([fast, cheap]).splitlines()) == 4


def test_a_start_shows_the_least_of_its_repeats(monkeypatch):
    told = iter([(0.4, 0.3), (0.2, 0.1), (0.6, 0.5), (0.7, 0.2)])
    monkeypatch.setattr(starting, "seconds", lambda arguments: next(told))
    first, second = starting.report(repeats=2).splitlines()[2:]
    assert first == "| import lldlib | 0.20 | 0.10 | ≤ 0.3 | yes |"
    assert second == "| lldlib --help | 0.60 | 0.20 | ≤ 0.5 | NO |"
