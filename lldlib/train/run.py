"""One training run, from a config to a run folder; resumable any time."""

import dataclasses
import datetime
import json
import logging
import platform
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch
import transformers
from tqdm import tqdm

from lldlib.config import RolloutConfig, TrainConfig, train_config_from
from lldlib.evaluate.heldout import ask, pass_at
from lldlib.files import new_folder
from lldlib.policy.load import check_name
from lldlib.rollout.loop import Rollout
from lldlib.runs.folder import (
    CHECKPOINTS,
    CONFIG,
    LOGS,
    QUESTIONS,
    Held,
    Run,
    RunWriter,
    as_logged,
    refuse_run,
)
from lldlib.runs.measures import known
from lldlib.runs.phases import Monitor, Phase, Told
from lldlib.train import measure
from lldlib.train.setup import Setting, make_setting
from lldlib.train.trainer import Trainer
from lldlib.types import Episode, Turn
from lldlib.world.environment import Split

STATUS = {  # metrics in a progress line
    "reward/mean": "reward",
    "policy/entropy": "entropy",
    "probe/logp": "likelihood",
}

logger = logging.getLogger(__name__)


class TrainingRun:
    """A trainer on its questions tied to a run folder.

    With `resume` it goes on by the settings of the folder, which `config` does not change. Raises
    ValueError for settings without a meaning, and what `RunWriter` raises for the folder.
    """

    def __init__(self, config: TrainConfig, out: Path, *, resume: bool = False):
        self.out = Path(out)
        if resume:
            config = train_config_from(Run(out).config)
            Held(self.out).close()  # in use: said before anything is loaded
        else:
            refuse_run(self.out)
        config.check()
        check_name(config.policy)
        self.setting = make_setting(config)
        s = self.setting
        self.trainer = Trainer(config, s.policy, s.environment, s.probe)
        self.monitor = Monitor()
        self._broken = False  # whether a batch was broken off in its midst
        if resume:
            self._resume()
        else:
            self.writer = RunWriter.create(self.out, describe(config))
            self._begin()

    def _resume(self, step: int | None = None) -> None:
        """Go on from a checkpoint (None: the last), by its settings: knobs may have been turned."""
        with Held(self.out).freed_by_errors() as held:
            self._go_on(held, step)

    def _go_on(self, held: Held, step: int | None) -> None:
        self._broken = False
        run = Run(self.out)
        step = run.resumes_at() if step is None else step
        if step is None:  # killed before it had done anything
            (self.out / QUESTIONS).unlink(missing_ok=True)
            self.writer = RunWriter.resume(self.out, 0, held)
            self._begin()
            return
        tensors, state = run.load_checkpoint(step)
        if not isinstance(state, dict) or not {"config", "step"} <= state.keys():
            raise ValueError(f"{self.out} has checkpoints of another version: start a new run")
        self.trainer.turn(**vars(train_config_from(state["config"])))
        self.trainer.load_state(tensors, state)
        step = state["step"]
        self.writer = RunWriter.resume(self.out, step, held)
        # a knob turned at this very batch is in the checkpoint, and its event was just dropped
        self._log_knobs(train_config_from(run.settings(step)))
        self.writer.event(step, "resume")
        self.monitor = Monitor(Run(self.out).metrics)

    @classmethod
    def branch(cls, source: Run, step: int, out: Path, **knobs) -> "TrainingRun":
        """A new run folder that shares the source's history before batch `step`.

        Needs a checkpoint of the source at `step`; `knobs` are fields of TrainConfig. Raises
        FileExistsError if `out` exists.
        """
        out = Path(out)
        checkpoint = dict(source.checkpoints).get(step)
        if checkpoint is None:
            have = ", ".join(str(number) for number, _ in source.checkpoints)
            raise ValueError(f"no checkpoint at batch {step}: {source.path} has {have or 'none'}")
        if out.exists():
            raise FileExistsError(f"{out} exists: branch into a new folder")
        with new_folder(out) as fresh:  # a kill leaves no half, and none without its knobs
            kept = fresh / CHECKPOINTS / checkpoint.with_suffix("").name
            source.read_checkpoint(step, partial(shutil.copytree, dst=kept, dirs_exist_ok=True))
            for name in (CONFIG, *LOGS):
                if (source.path / name).exists():
                    shutil.copy(source.path / name, fresh)
            run = cls(train_config_from(source.config), fresh, resume=True)
            if knobs:
                run.turn(**knobs)
            run.writer.close()
        run.out, run.writer = out, RunWriter(out)
        return run

    @property
    def config(self) -> TrainConfig:
        """The settings of the next batch."""
        return self.trainer.config

    @property
    def next_batch(self) -> int:
        """The number of the batch that the next step trains."""
        return self.trainer.step_index

    @property
    def points(self) -> list[int]:
        """The batches at which it has a checkpoint: it can be rewound or branched there."""
        return [step for step, _ in Run(self.out).checkpoints]

    def rewind(self, step: int) -> None:
        """Go back to the checkpoint at batch `step`: what was logged from there on is dropped.

        Raises FileNotFoundError, and changes nothing, if there is no such checkpoint.
        """
        Run(self.out).load_checkpoint(step)
        self.writer.close()
        self._resume(step)

    def turn(self, **knobs) -> None:
        """Turn knobs between steps; what changed is an event of the batch that follows.

        A checkpoint holds the knobs, so that a killed run goes on with them.
        """
        self._refuse_broken()
        before = self.config
        self.trainer.turn(**knobs)
        self.checkpoint()
        self._log_knobs(before)

    def extend(self, steps: int) -> None:
        """Let the run end at `steps` batches; ValueError where it has trained more already.

        What is trained is what a run of so many batches from the start would train: nothing of a
        batch depends on where the run ends, but for the evaluation and the checkpoint there.
        """
        if steps < self.next_batch:
            done = self.next_batch
            raise ValueError(f"{self.out} has trained {done} batches: give --steps {done} or more")
        if steps != self.config.steps:
            self.turn(steps=steps)

    def _log_knobs(self, before: TrainConfig) -> None:
        """Log as an event how the settings differ from those of `before`."""
        old, new = (dataclasses.asdict(config) for config in (before, self.config))
        if changed := {name: value for name, value in new.items() if value != old[name]}:
            self.writer.event(self.next_batch, "knob", **changed)

    def checkpoint(self) -> None:
        """Write a checkpoint from which the next batch continues."""
        self._refuse_broken()
        tensors, state = self.trainer.state()
        self.writer.checkpoint(self.next_batch, tensors, state)
        if self.next_batch:  # an event belongs to the batch that it follows
            self.writer.event(self.next_batch - 1, "checkpoint")

    def _begin(self) -> None:
        """Write what stands in a run folder before its first batch."""
        self._answer_questions()
        self.checkpoint()

    def _answer_questions(self) -> None:
        """Record what the policy answers now to the fixed questions, if that is asked for at all.

        It is written before the checkpoint at this batch, so that what a checkpoint goes on from
        is whole.
        """
        if not self.config.questions_every:
            return
        policy, environment = self.setting.policy, self.setting.environment
        split, config = environment.heldout, self.config
        rollout = Rollout(policy.tokenizer, environment.rules, split.tool, config.rollout.exact)
        asked = measure.fixed_questions(split.questions)
        for episode in measure.answers(policy.model, rollout, asked, config):
            self.writer.question(self.next_batch, record(episode, policy.tokenizer))

    def step(self) -> dict[str, float]:
        """One batch: train, evaluate when due, log, checkpoint when due.

        Raises ValueError after one that an error or Ctrl-C broke off, which may have trained
        already: `rewind`, or open the run again.
        """
        self._refuse_broken()
        index = self.next_batch
        try:
            return self._step()
        except BaseException as error:  # a search service may be down before anything was trained
            self._broken = not isinstance(error, ConnectionError) or self.next_batch != index
            raise

    def _refuse_broken(self) -> None:
        if self._broken:
            raise ValueError(
                f"batch {self.next_batch} of {self.out} was broken off: rewind to a checkpoint, or "
                "open the run again to go on from its last one"
            )

    def _step(self) -> dict[str, float]:
        index, config = self.next_batch, self.config
        start = {}
        if self._untrained:
            heldout = self.setting.environment.heldout
            start = _exam(self.setting, config.rollout, "start", heldout)
        metrics, episodes = self.trainer.step()
        metrics |= start
        done = index + 1
        last = done == config.steps
        if config.eval_every and (done % config.eval_every == 0 or last):
            metrics |= self.heldout_metrics()
        for episode in episodes[: config.rollouts_logged]:
            self.writer.rollout(index, record(episode, self.setting.policy.tokenizer))
        self.monitor.add(as_logged(metrics))  # as a resumed run reads them
        if self.monitor.rung == index:
            self.writer.event(index, "alarm")
        if last or (config.questions_every and done % config.questions_every == 0):
            self._answer_questions()
        # after all else of the batch, as a run with a row for every batch counts as finished
        self.writer.metrics(index, metrics)
        if last or (config.checkpoint_every and done % config.checkpoint_every == 0):
            self.checkpoint()
        return metrics

    @property
    def _untrained(self) -> bool:
        return self.next_batch == 0 and self.config.eval_every > 0

    def heldout_metrics(self) -> dict[str, float]:
        """Scores on the held-out questions, and the exams: sampled as in training, and greedy."""
        return exam_scores(self.setting, self.config.rollout)

    def run(self, on_step: Callable[[int, dict[str, float]], None] | None = None) -> Run:
        """Run to the configured number of batches; stopped in its midst, it leaves the folder."""
        try:
            while self.next_batch < self.config.steps:
                metrics = self.step()
                if on_step:
                    on_step(self.next_batch - 1, metrics)
        finally:  # so that a new TrainingRun may resume it, also in the same notebook
            self.writer.close()
        return Run(self.out)


def run_with_bar(run: TrainingRun) -> Run:
    """`TrainingRun.run` with a progress bar that says where the run stands."""
    total, done = run.config.steps, run.next_batch
    with tqdm(total=total, initial=done, desc=run.out.name, unit="batch") as bar:

        def on_step(index: int, metrics: dict[str, float]) -> None:
            bar.set_postfix_str(status(metrics, run.monitor.phase), refresh=False)
            bar.update()

        return run.run(on_step)


def exam_scores(setting: Setting, config: RolloutConfig) -> dict[str, float]:
    """Scores on the held-out questions, and the exams: sampled as in training, and greedy."""
    environment = setting.environment
    splits = {"heldout": environment.heldout, **environment.exams()}
    found = [_exam(setting, config, name, split) for name, split in splits.items()]
    return {key: value for scores in found for key, value in scores.items()}


def _exam(setting: Setting, config: RolloutConfig, name: str, split: Split) -> dict[str, float]:
    policy = setting.policy
    rollout = Rollout(policy.tokenizer, setting.environment.rules, split.tool, config.exact)
    sampled, greedy = (
        ask(policy, rollout, split.questions, temperature=temperature, samples=split.samples)
        for temperature in (config.temperature, 0.0)
    )
    found = {
        f"eval/{name}_em": sampled.reward,
        **{f"eval/{name}_{score}": value for score, value in sampled.scores.items()},
        f"eval/{name}_em_greedy": greedy.reward,
    }
    if split.passes:
        chances = pass_at(sampled, split.samples)
        found |= {f"eval/{name}_pass_{k}": chance for k, chance in chances.items()}
    return {key: known(value) for key, value in found.items()}


def record(episode: Episode, tokenizer) -> dict:
    """An episode as JSON: texts and tokens with the sampler's log-probs, turn by turn."""
    return {
        "question": episode.question.text,
        "answers": list(episode.question.answers),
        "answer": episode.answer,
        "reward": episode.reward,
        "stop": episode.stop.value,
        "turns": [_turn(turn, tokenizer) for turn in episode.turns],
    }


def _turn(turn: Turn, tokenizer) -> dict:
    """A turn as JSON; with its tokens' texts where those are no words of the text."""
    text, own = tokenizer.decode(turn.tokens), turn.role == "action"
    logp = [round(value, 4) for value in turn.logp if own]
    told = {"role": turn.role, "text": text, "logp": logp}
    if own and len(text.split()) != len(logp):
        told["pieces"] = [tokenizer.decode([token]) for token in turn.tokens]
    return told


def describe(config: TrainConfig) -> dict:
    """The run folder's config.json."""
    device = f"cpu, {platform.machine()}, {torch.get_num_threads()} threads"
    if torch.device(config.load.device).type == "cuda":
        device = torch.cuda.get_device_name(config.load.device)
    return json.loads(json.dumps(dataclasses.asdict(config))) | {
        "created": datetime.date.today().isoformat(),
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "device": device,
    }


def status(row: Mapping[str, float | int | None], phase: Phase, told: Told = "live") -> str:
    """Where a run stands after a batch: its reward, entropy, probe likelihood, and phase."""
    parts = [f"{name} {row[key]:.2f}" for key, name in STATUS.items() if row.get(key) is not None]
    return "  ".join([*parts, f"{phase} ({told})"])
