"""Small recorded runs, written by hand, for the pages that show such runs."""

from pathlib import Path

from lldlib.recipes import train_config
from lldlib.runs.folder import Run, RunWriter
from lldlib.train.run import describe

ASKED = {"where ?": "Rome", "who ?": "Ada"}  # the fixed questions


def turn(role: str, text: str, *logp: float) -> dict:
    return {"role": role, "text": text, "logp": list(logp)}


def record(question: str, answer: str | None, *turns: dict) -> dict:
    right = answer == ASKED.get(question)
    stop = "token_budget" if answer is None else "answer"
    known = {"question": question, "answers": [ASKED.get(question, "x")], "answer": answer}
    turns = turns or (turn("action", f"<answer> {answer} </answer>", -0.5, -0.123, 0.0),)
    return known | {"reward": float(right), "stop": stop, "turns": list(turns)}


def made(
    folder: Path, method="grpo", batches=3, seed=0, *, asked=True, last=None, logged=0, **own
) -> Run:
    """A recorded run of a few batches that answers all right, but for `last` at the end."""
    config = train_config(method, seed, **{"steps": batches} | own)
    writer = RunWriter.create(folder, describe(config))
    for step in range(batches):
        row = {"reward/mean": 0.5 - 0.1 * step, "probe/logp": -0.6 - step, "grad/norm": 2.0}
        writer.metrics(step, row | {"policy/entropy": 0.7, "likelihood/correct": -0.3})
        for _ in range(logged):
            writer.rollout(step, record("in training ?", "x"))
    for step in range(batches + 1) if asked else ():
        for question, right in ASKED.items():
            said = (last or {}).get(question, right) if step == batches else right
            writer.question(step, record(question, said))
    writer.close()
    return Run(folder)
