"""The supervised warm start on gold trajectories of made rows."""

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from benchmark_files import write_rows
from gold_rows import HOTPOT, MUSIQUE
from helpers import character_tokenizer

from lldlib.config import LoadConfig, SftConfig, train_config_from
from lldlib.policy.load import Policy, load_policy, save_policy, tiny_model
from lldlib.rollout.loop import TokenText
from lldlib.runs.folder import Run
from lldlib.train.lessons import gold_lesson, load_gold_paths
from lldlib.train.supervised import SftRun, gold_episode, reads_answer, sft_config_from
from lldlib.world.protocol import SEARCH_R1, parse_action


@pytest.fixture
def file(tmp_path) -> Path:
    return write_rows(tmp_path / "rows.jsonl", (MUSIQUE, HOTPOT))


@pytest.fixture
def folder(tmp_path) -> str:
    """A model over characters that knows no tag."""
    tokenizer = character_tokenizer()
    model = tiny_model(len(tokenizer), width=32, layers=1, heads=2, seed=0)
    model.config.max_position_embeddings = 2048
    save_policy(Policy(model.eval(), tokenizer), tmp_path / "start")
    return str(tmp_path / "start")


LORA = LoadConfig(lora_rank=2, lora_alpha=4)


def config(folder: str, file: Path, **changes) -> SftConfig:
    small = {"steps": 4, "batch": 3, "rows": 2, "warmup": 2, "checkpoint_every": 2, "lr": 1e-2}
    small |= {"max_tokens": 2000, "top_k": 2, "load": LORA}
    return SftConfig(files=(str(file),), policy=folder, **small | changes)


def test_an_episode_is_tokenised_as_a_rollout_does_it(folder, file):
    policy = load_policy(folder)
    text, path = TokenText(policy.tokenizer), load_gold_paths(file)[0]
    episode = gold_episode(text, path, random.Random(0), config(folder, file))
    roles = [turn.role for turn in episode.turns]
    assert roles == ["prompt", "action", "environment", "action", "environment", "action"]
    turns = gold_lesson(path, random.Random(0), 2)
    for turn, (said, _) in zip(episode.turns[1::2], turns, strict=True):
        assert turn.tokens == text.encode(said)
    read = SEARCH_R1.observe(turns[0][1], text.encode, 0)
    assert episode.turns[2].tokens == read
    assert episode.turns[0].tokens == text.encode(SEARCH_R1.prompt(path.question.text))


def test_passages_are_cut_and_a_baseline_answers_at_once(folder, file):
    policy = load_policy(folder)
    text, path = TokenText(policy.tokenizer), load_gold_paths(file)[0]
    settings = config(folder, file, passage_tokens=9)
    episode = gold_episode(text, path, random.Random(0), settings)
    read = policy.tokenizer.decode(episode.turns[2].tokens)
    assert read == "\n\n<information>Doc 1(Tit\nDoc 2(Tit</information>\n\n"
    assert episode.valid_searches == 2
    direct = gold_episode(text, path, random.Random(0), replace(settings, search=False))
    assert [turn.role for turn in direct.turns] == ["prompt", "action"]
    assert direct.turns[0].tokens == episode.turns[0].tokens
    said = parse_action(policy.tokenizer.decode(direct.turns[1].tokens))
    assert (said.kind, said.content, direct.valid_searches) == ("answer", "Lima", 0)


def test_an_answer_that_the_cut_passages_lost_is_not_taught(folder, file, tmp_path):
    policy = load_policy(folder)
    text, path = TokenText(policy.tokenizer), load_gold_paths(file)[0]  # answer: Lima
    whole, cut = config(folder, file), config(folder, file, passage_tokens=9)
    read, unread = (
        gold_episode(text, path, random.Random(0), settings) for settings in (whole, cut)
    )
    assert reads_answer(read, policy.tokenizer)
    assert not reads_answer(unread, policy.tokenizer)
    assert not reads_answer(replace(read, answer="Lim"), policy.tokenizer)  # whole words
    assert reads_answer(replace(unread, answer="no"), policy.tokenizer)  # a comparison's verdict
    with pytest.raises(ValueError, match="shows its answer: raise max_tokens or passage_tokens"):
        SftRun(cut, tmp_path / "cut").step()
    direct = replace(cut, search=False)
    SftRun(direct, tmp_path / "direct").step()  # nothing is read, or asked for
    with pytest.raises(ValueError, match=r"at most 10 tokens: raise max_tokens$"):
        SftRun(replace(direct, max_tokens=10), tmp_path / "short").step()


@pytest.mark.parametrize("quantize", [None, "nf4"])
def test_it_learns_resumes_and_leaves_a_merged_policy(folder, file, tmp_path, quantize):
    settings = config(folder, file, load=replace(LORA, quantize=quantize))
    unbroken = SftRun(settings, tmp_path / "a")
    unbroken.run(progress=False)
    losses = Run(tmp_path / "a").column("sft/loss")
    assert len(losses) == 4 and losses[-1] < losses[0]
    broken = SftRun(settings, tmp_path / "b")
    for _ in range(3):  # the checkpoint is at 2: the third step is done again
        broken.step()
    broken.writer.close()
    SftRun(settings, tmp_path / "b", resume=True).run(progress=False)
    assert Run(tmp_path / "b").column("sft/loss") == losses
    policies = [load_policy(str(tmp_path / name / "policy")).model for name in "ab"]
    start = dict(load_policy(folder).model.named_parameters())
    pairs = [dict(model.named_parameters()) for model in policies]
    assert pairs[0].keys() == pairs[1].keys() == start.keys()
    assert all(torch.equal(pairs[0][name], pairs[1][name]) for name in start)
    moved = {name for name in start if not torch.equal(start[name], pairs[0][name])}
    assert len(moved) == 7 and all("proj" in name for name in moved)


def test_an_interrupted_run_goes_on_in_the_same_process(folder, file, tmp_path, monkeypatch):
    run = SftRun(config(folder, file), tmp_path / "run")
    monkeypatch.setattr(run, "step", lambda: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        run.run(progress=False)
    SftRun(config(folder, file), tmp_path / "run", resume=True).run(progress=False)
    assert len(Run(tmp_path / "run").column("sft/loss")) == 4


def test_a_short_file_is_drawn_from_more_often_than_its_share(folder, file, tmp_path):
    long = tmp_path / "long.jsonl"
    row = json.loads(file.read_text().splitlines()[0])
    long.write_text("".join(json.dumps(row | {"id": f"long-{n}"}) + "\n" for n in range(32)))
    settings = replace(config(folder, file), files=(str(file), str(long)))
    run, rng = SftRun(settings, tmp_path / "run"), random.Random(0)
    drawn = [run._draw_one(rng).question.id.startswith("long-") for _ in range(100)]
    assert 70 <= sum(drawn) <= 90  # of 100; 4 of 5 by the roots of 2 and 32, 94 by the rows


def test_autocast_computes_in_bfloat16_and_trains_float32_weights(folder, file, tmp_path):
    settings = config(folder, file, load=LoadConfig(), steps=1)
    runs = [SftRun(replace(settings, autocast=on), tmp_path / str(on)) for on in (False, True)]
    losses = [run.step()["sft/loss"] for run in runs]
    assert losses[0] != losses[1]
    assert losses[1] == pytest.approx(losses[0], rel=1e-2)
    start = dict(load_policy(folder).model.named_parameters())
    for name, parameter in runs[1].policy.model.named_parameters():
        assert parameter.dtype == torch.float32 and not torch.equal(parameter, start[name])


def test_settings_come_back_and_what_fits_nowhere_is_said(folder, file, tmp_path):
    settings = config(folder, file, max_tokens=10)
    run = SftRun(settings, tmp_path / "run")
    assert sft_config_from(Run(tmp_path / "run").config) == settings
    with pytest.raises(ValueError, match="a run of sft, not of train: evaluate it with --policy"):
        train_config_from(Run(tmp_path / "run").config)
    with pytest.raises(ValueError, match="raise max_tokens"):
        run.step()
    with pytest.raises(ValueError, match=r"differs in .*autocast.* another version; begin"):
        sft_config_from({"seed": 0})
    raw = Run(tmp_path / "run").config
    for odd in ({"load": {"quantise": None}}, {"files": 5}, {"files": "x.jsonl"}):
        with pytest.raises(ValueError, match="of another version"):
            sft_config_from(raw | odd)
    with pytest.raises(ValueError, match="a run of trl, not of train"):
        train_config_from({"engine": "trl"})
