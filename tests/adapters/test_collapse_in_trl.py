"""The shuffled atlas in TRL's trainer: a new planet for every batch, and held-out scores."""

from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("trl", reason="needs the extra 'trl': run make test-adapters")

from collapse_in_trl import planets, train

from lldlib.policy.load import load_as
from lldlib.recipes import SHUFFLED, train_config
from lldlib.rollout.loop import Rollout
from lldlib.runs.folder import Run
from lldlib.world.registry import open_environment


def test_every_batch_asks_questions_of_its_own_planet(micro):
    config = train_config("grpo", 0, recipe=SHUFFLED, **micro)
    policy, environment = load_as(config.policy, config.load), open_environment(config)
    tool = environment.training(0).tool
    runner = Rollout(policy.tokenizer, environment.rules, tool, config.rollout)
    asked = planets(config, environment, runner)
    trainer = SimpleNamespace(
        state=SimpleNamespace(global_step=0),
        accelerator=SimpleNamespace(unwrap_model=lambda model: model),
        model=policy.model,
        temperature=1.0,
        processing_class=policy.tokenizer,
    )
    prompts = [f"group {k}" for k in range(4) for _ in range(2)]

    def at(update: int) -> tuple[list, list]:
        trainer.state.global_step = update
        out = asked(prompts, trainer)
        texts = [passage.text for passage in runner.tool.inner.passages]
        return out["prompt_ids"], texts

    torch.manual_seed(0)
    first, library = at(0)
    assert all(first[i] == first[i + 1] for i in range(0, 8, 2))  # two rollouts of a question
    assert len({tuple(ids) for ids in first}) == 4
    second, other = at(config.updates_per_batch)  # the first update of the next batch
    assert second != first and other != library
    assert at(0) == (first, library)  # as a resumed run would meet it
    with pytest.raises(ValueError, match="no 4 groups"):
        asked(prompts[::-1][1:], trainer)


def test_held_out_questions_change_nothing_in_the_training(micro, tmp_path):
    runs = []
    for every in (0, 1):
        config = train_config("grpo", 0, recipe=SHUFFLED, **micro, eval_every=every)
        train(config, tmp_path / str(every))
        runs.append(Run(tmp_path / str(every)))
    bare, examined = ([dict(row) for row in run.metrics] for run in runs)
    assert all(f"eval/heldout_em{end}" in row for row in examined for end in ("", "_greedy"))
    assert "eval/start_em" in examined[0] and "eval/start_em" not in examined[1]
    kept = [
        [{k: v for k, v in row.items() if not k.startswith(("eval/", "time/"))} for row in rows]
        for rows in (bare, examined)
    ]
    assert kept[0] == kept[1] and len(kept[0]) == 2
