"""Ask benchmark questions and keep every answer: resumable, one JSONL file a task."""

import hashlib
import json
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from lldlib.config import ExamConfig, RolloutConfig
from lldlib.evaluate.scores import Prediction, read_predictions
from lldlib.files import load_json, write_json, write_whole, writing
from lldlib.policy.load import Policy
from lldlib.retrieval import NoRetriever, Retriever
from lldlib.rollout.loop import Rollout
from lldlib.runs.folder import Held
from lldlib.types import Episode, Question, StopReason
from lldlib.world.benchmarks import Task
from lldlib.world.environment import RULES, Rules

SETTINGS, PREDICTIONS = "settings.json", "predictions"


class Exam:
    """One policy's answers in one folder.

    A folder belongs to one policy and one way of asking; run it again after an interruption and it
    goes on. Answers that ended because the search tool was down are asked again.
    """

    def __init__(
        self,
        policy: Policy,
        retriever: Retriever,
        config: ExamConfig,
        folder: Path | str,
        names: dict[str, Any],
    ) -> None:
        """`names` tells where policy and passages are from; it is kept with the settings.

        Raises ValueError where the folder holds answers by other settings (`limit` may change).
        """
        config.check()
        self.policy, self.retriever, self.config = policy, retriever, config
        self.folder = Path(folder)
        asked = {k: v for k, v in asdict(config).items() if k != "limit"}
        _claim(self.folder, names | asked)

    def ask(self, task: Task, questions: list[Question], progress: bool) -> list[Prediction]:
        """The answers to the slice of `questions` that the limit leaves, those on disk included.

        Raises ValueError where an answer on disk belongs to another question of the same id, or was
        judged by other golden answers, and BlockingIOError where another exam writes into the
        folder.
        """
        with closing(Held(self.folder)):
            return self._ask(task, questions, progress)

    def _ask(self, task: Task, questions: list[Question], progress: bool) -> list[Prediction]:
        path = prediction_file(self.folder, task)
        done = _recover(path)
        chosen = slice_of(questions, self.config.limit)
        items = [(question, n) for question in chosen for n in range(task.samples)]
        _check_questions(path, chosen, done)
        rollout = self._rollout(task)
        starts = range(0, len(items), self.config.rows)
        for start in tqdm(starts, desc=task.title, unit="batch", disable=not progress):
            chunk = items[start : start + self.config.rows]
            if any((question.id, n) not in done for question, n in chunk):
                answers = self._answer(task, rollout, chunk, start)
                new = [one for one in answers if (one.id, one.sample) not in done]
                with writing(path), path.open("a", encoding="utf-8") as file:
                    file.writelines(map(_line, new))
                done |= {(one.id, one.sample): one for one in new}
        return [done[question.id, n] for question, n in items]

    def _rollout(self, task: Task) -> Rollout:
        if task.kind == "maths":
            tool = NoRetriever()
            rollout = RolloutConfig(max_searches=0, max_tokens=self.config.maths_tokens)
        else:
            tool, names = self.retriever, ("max_searches", "max_tokens", "top_k", "passage_tokens")
            rollout = RolloutConfig(**{name: getattr(self.config, name) for name in names})
        rollout = replace(rollout, at_once=self.config.rows)
        return Rollout(self.policy.tokenizer, RULES[task.kind], tool, rollout)

    def _answer(
        self, task: Task, rollout: Rollout, chunk: list[tuple[Question, int]], start: int
    ) -> list[Prediction]:
        """A whole chunk with a seed of its own: a resumed exam draws what an unbroken one draws."""
        generator = torch.Generator().manual_seed(seed_of(task.name, start))
        asked = [question for question, _ in chunk]
        episodes = rollout.run(
            self.policy.model, asked, temperature=task.temperature, generator=generator
        )
        return [
            predict(episode, n, rollout.rules)
            for (_, n), episode in zip(chunk, episodes, strict=True)
        ]


def predict(episode: Episode, sample: int, rules: Rules) -> Prediction:
    """What is kept of an episode; F1 where its rules report it."""
    answer, golden = episode.answer, episode.question.answers
    return Prediction(
        id=episode.question.id,
        sample=sample,
        question=episode.question.text,
        golden_answers=list(golden),
        prediction=answer,
        score=episode.reward,
        f1=rules.scores["f1"](answer, golden) if "f1" in rules.scores else None,
        searches=episode.valid_searches,
        invalid=episode.invalid_actions,
        tokens=sum(len(turn.tokens) for turn in episode.turns if turn.role == "action"),
        stop=str(episode.stop),
    )


def prediction_file(folder: Path | str, task: Task) -> Path:
    """Where the answers to a task lie."""
    return Path(folder, PREDICTIONS, f"{task.name}.jsonl")


def slice_of(questions: list[Question], limit: int | None) -> list[Question]:
    """The first `limit` questions in the order of their ids' hashes.

    So a slice is a fair sample of its file, the same each time, and part of every larger slice.
    """
    return sorted(questions, key=lambda question: _digest(question.id))[:limit]


def seed_of(task: str, start: int) -> int:
    """A seed for the chunk of a task that begins with answer `start`."""
    return int.from_bytes(_digest(f"{task} {start}")[:7], "big")


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _claim(folder: Path, settings: dict[str, Any]) -> None:
    path = folder / SETTINGS
    with writing(folder):
        (folder / PREDICTIONS).mkdir(parents=True, exist_ok=True)
    if not path.exists():
        write_json(path, settings)
        return
    try:
        there = load_json(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} is broken ({error}): use another --out") from error
    if not isinstance(there, dict):
        raise ValueError(f"{path} holds no settings of an exam: use another --out")
    for name in settings.keys() | there.keys():
        if settings.get(name) != there.get(name):
            raise ValueError(
                f"{folder} holds answers with {name} = {there.get(name)!r}, not "
                f"{settings.get(name)!r}: use the same settings, or another --out"
            )


def _recover(path: Path) -> dict[tuple[str, int], Prediction]:
    """The answers on disk; a half-written last line and answers without their search go."""
    if not path.exists():
        return {}
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if whole != data:
        write_whole(path, whole.decode())
    found = read_predictions(path)
    kept = [one for one in found if one.stop != StopReason.TOOL_ERROR]
    if len(kept) < len(found):
        write_whole(path, "".join(map(_line, kept)))
    return {(one.id, one.sample): one for one in kept}


def _line(one: Prediction) -> str:
    return json.dumps(vars(one), ensure_ascii=False) + "\n"


def _check_questions(
    path: Path, questions: list[Question], done: dict[tuple[str, int], Prediction]
) -> None:
    asked = {name: (one.question, one.golden_answers) for (name, _), one in done.items()}
    for question in questions:
        text, answers = asked.get(question.id, (question.text, list(question.answers)))
        if (text, answers) != (question.text, list(question.answers)):
            what = "another question" if text != question.text else "judged by other answers"
            raise ValueError(f"{path}: '{question.id}' was {what}; use another --out")
