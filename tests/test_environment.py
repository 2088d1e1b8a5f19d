"""The environments that are listed; a new one is made in test_contributing.py."""

from dataclasses import replace

import pytest
from benchmark_files import write_rows
from helpers import world

from lldlib.config import DataConfig, TrainConfig
from lldlib.recipes import train_config
from lldlib.retrieval import NoRetriever
from lldlib.train.run import TrainingRun
from lldlib.world.answers import exact_match, f1
from lldlib.world.environment import Environment
from lldlib.world.registry import open_environment


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
