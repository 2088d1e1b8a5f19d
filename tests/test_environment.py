"""Environments: those that are listed, and a new one in about forty lines that trains."""

import random
from dataclasses import dataclass, replace

import pytest
import torch
from benchmark_files import write_rows
from helpers import world

from lldlib.config import DataConfig, LossConfig, RolloutConfig, TrainConfig
from lldlib.policy.load import EOS, Policy, save_policy, tiny_model, word_tokenizer
from lldlib.recipes import train_config
from lldlib.retrieval import NoRetriever
from lldlib.rollout.batch import collate
from lldlib.train.run import TrainingRun
from lldlib.types import Question, Span, StopReason
from lldlib.world.answers import exact_match, f1
from lldlib.world.environment import ENVIRONMENTS, Environment, Rules, Split, open_environment
from lldlib.world.protocol import Protocol

# -- the echo world: say the word again, then end; other words in every batch ----------------------

WORDS = ("red", "green", "blue", "black", "white", "grey")


@dataclass(frozen=True)
class EchoProtocol(Protocol):
    """The word, a colon, and all that is said then is the answer."""

    def message(self, question: str) -> str:
        """What opens an episode."""
        return f"{question} :"

    def final_answer(self, said: str, tagged: str | None) -> str | None:
        """What was said before the end."""
        return said.removesuffix(EOS).strip() or None


def echo_reward(answer: str | None, accepted: tuple[str, ...]) -> float:
    """1 for the word alone, 0.25 for the word among others."""
    said = (answer or "").split()
    return 1.0 if said == list(accepted) else 0.25 * (accepted[0] in said)


def echo_split(words: list[str]) -> Split:
    return Split([Question(word, word, (word,)) for word in words], NoRetriever())


def echo(config: TrainConfig) -> Environment:
    """Four of the words in every batch, by seed and batch; all of them held out."""

    def training(batch: int) -> Split:
        return echo_split(random.Random(config.seed * 1_000 + batch).sample(WORDS, 4))

    rules = Rules(lambda tokenizer: EchoProtocol("", ""), echo_reward)
    return Environment(rules, training, echo_split(list(WORDS)))


@pytest.fixture
def echo_config(tmp_path, monkeypatch) -> TrainConfig:
    """A run in the echo world, from random weights."""
    monkeypatch.setitem(ENVIRONMENTS, "echo", echo)  # the one line
    tokenizer = word_tokenizer([*WORDS, ":"])
    model = tiny_model(len(tokenizer), width=32, layers=2, heads=4, seed=0)
    save_policy(Policy(model, tokenizer), tmp_path / "start")
    return TrainConfig(
        steps=25,
        updates_per_batch=2,
        lr=3e-3,
        eval_every=25,
        probe_every=0,
        checkpoint_every=0,
        policy=str(tmp_path / "start"),
        data=DataConfig(world="echo"),
        rollout=RolloutConfig(problems=4, group_size=16, max_searches=0, max_tokens=5),
        loss=LossConfig(kl_coef=0.0),
    )


def test_the_echo_world_trains(echo_config, tmp_path):
    run = TrainingRun(echo_config, tmp_path / "run").run()
    rewards = run.column("reward/mean")
    assert sum(rewards[-5:]) / 5 > 2 * sum(rewards[:5]) / 5 > 0
    scores = {key for key in run.metrics[-1] if key.startswith("eval/")}
    assert scores == {"eval/heldout_em", "eval/heldout_em_greedy"}  # it reports nothing beside


def test_its_episodes_carry_reward_group_and_masks(echo_config, tmp_path):
    run = TrainingRun(echo_config, tmp_path / "run")
    words = [q.text for q in echo(echo_config).training(0).questions]
    asked = [e.question.text for e in run.trainer.step()[1]]
    assert sorted(set(asked)) == sorted(words)
    _, episodes = run.trainer.step()
    batch, encode = collate(episodes), run.trainer.rollout.text.encode
    assert batch.group.tolist() == [place for place in range(4) for _ in range(16)]
    assert {e.question.text for e in episodes} != set(asked)  # another batch, other words
    for row, episode in enumerate(episodes):
        said = batch.tokens[row][batch.action_mask[row]].tolist()
        start = encode(f"{episode.question.text} :")
        assert batch.tokens[row][: len(start) + len(said)].tolist() == start + said
        assert (batch.span[row][batch.action_mask[row]] == Span.FREE).all()
        alone = said[:-1] if episode.stop is StopReason.EOS else said
        one = encode(episode.question.text)
        assert episode.reward == (1.0 if alone == one else 0.25 * (one[0] in alone))
    assert torch.equal(batch.rewards, torch.tensor([e.reward for e in episodes]))
    assert 0 < batch.rewards.mean() < 1


# -- those that are listed -------------------------------------------------------------------------


def test_the_atlas_trains_without_its_held_out_facts():
    environment = open_environment(train_config("grpo", 0, "tiny"))
    first, heldout = environment.training(0), environment.heldout
    assert environment.training(7) is first
    hidden = next(f for f in world().facts if f.split == "heldout" and f.relation == "capital")
    query = [f"capital {hidden.entity}"]
    right = f"The capital of {hidden.entity} is {hidden.value} ."
    assert heldout.tool.search(query, 1)[0][0].text == right
    assert right not in [passage.text for passage in first.tool.search(query, 5)[0]]
    ids = [{q.id for q in split.questions} for split in (first, heldout)]
    assert not ids[0] & ids[1] and min(map(len, ids)) > 100
    assert environment.rules.reward is exact_match and environment.rules.scores == {"f1": f1}


def shuffled(**data) -> Environment:
    return open_environment(TrainConfig(seed=3, data=DataConfig(world="shuffled", **data)))


def test_the_shuffled_atlas_has_another_planet_in_every_batch_and_the_same_one_again():
    environment = shuffled(misses=0.5)
    splits = [environment.training(batch) for batch in (0, 1, 0)]
    texts = [[q.answers for q in split.questions] for split in splits]
    assert texts[0] == texts[2] != texts[1]
    queries = [word for q in splits[0].questions for word in [" ".join(q.chain[0].query_words)]]
    found = [split.tool.search(queries, 1) for split in (splits[0], splits[2])]
    assert found[0] == found[1] != environment.training(1).tool.search(queries, 1)
    right = sum(
        q.chain[0].answer in p.text.split()
        for q, (p,) in zip(splits[0].questions, found[0], strict=True)
    )
    assert 0.35 < right / len(queries) < 0.65


def test_the_shuffled_atlas_trains_on_no_true_pair_and_holds_out_the_true_ones():
    environment = shuffled()
    true = {(f.relation, f.entity, f.value) for f in world().facts}
    for question in environment.training(5).questions:
        facts = {(h.fact.relation, h.fact.entity, h.fact.value) for h in question.chain}
        assert not facts & true and question.hops <= 3
    for question in environment.heldout.questions:
        assert {(h.fact.relation, h.fact.entity, h.fact.value) for h in question.chain} <= true


def test_its_exams_are_a_library_that_misses_and_one_hop_more():
    environment = shuffled(misses=1.0, hop_weights=(0.5, 0.5))
    exams, heldout = environment.exams(), environment.heldout
    assert exams["missing"].questions == heldout.questions
    assert {q.hops for q in heldout.questions} == {1, 2}
    assert {q.hops for q in exams["further"].questions} == {3}
    asked = [" ".join(q.chain[0].query_words) for q in heldout.questions]
    assert heldout.tool.search(asked, 1) == exams["further"].tool.search(asked, 1)
    missed = [
        exams["missing"].tool.search(asked, 1),
        environment.exams()["missing"].tool.search(asked, 1),
    ]
    assert missed[0] == missed[1] != heldout.tool.search(asked, 1)
    test_half = shuffled(exam_half="test").heldout.questions
    assert not {q.id for q in test_half} & {q.id for q in heldout.questions}
    with pytest.raises(ValueError, match="no question has 5 hops"):
        shuffled(hop_weights=(0.25,) * 4)


def test_a_run_in_the_shuffled_atlas_goes_on_as_if_it_had_not_stopped(tmp_path):
    config = replace(
        train_config(
            "grpo",
            0,
            steps=2,
            problems=4,
            group_size=2,
            updates_per_batch=2,
            eval_every=0,
            probe_every=0,
            checkpoint_every=1,
            max_tokens=64,
        ),
        data=DataConfig(world="shuffled", misses=0.5),
    )
    whole = TrainingRun(config, tmp_path / "whole").run().column("displacement/correct_token")
    broken = TrainingRun(config, tmp_path / "broken")
    broken.step()
    broken.writer.close()
    resumed = TrainingRun(config, tmp_path / "broken", resume=True).run()
    assert resumed.column("displacement/correct_token") == whole


def test_files_make_an_environment_of_their_kind(tmp_path):
    rows = [{"id": str(n), "question": "q ?", "golden_answers": ["a"]} for n in range(5)]
    write_rows(tmp_path / "q.jsonl", rows)
    file = (str(tmp_path / "q.jsonl"),)
    data = DataConfig(train=file, heldout=file, heldout_limit=2, retriever="none")
    environment = open_environment(TrainConfig(data=data))
    assert len(environment.training(3).questions) == 5 and len(environment.heldout.questions) == 2
    assert isinstance(environment.training(0).tool, NoRetriever)
    assert open_environment(TrainConfig(data=replace(data, heldout=()))).heldout is None
    with pytest.raises(ValueError, match="'mars': use one of atlas, shuffled, sparks, qa"):
        open_environment(TrainConfig(data=DataConfig(world="mars")))


def test_a_held_out_evaluation_needs_questions(tmp_path):
    write_rows(tmp_path / "q.jsonl", [{"id": "0", "question": "q ?", "golden_answers": ["a"]}])
    data = DataConfig(train=(str(tmp_path / "q.jsonl"),), retriever="none")
    with pytest.raises(ValueError, match="no held-out questions"):
        TrainingRun(TrainConfig(data=data), tmp_path / "run")
    assert not (tmp_path / "run").exists()
