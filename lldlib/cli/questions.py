"""Commands that ask and answer questions: evaluate, serve."""

import importlib.util
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

# The handlers import the rest, which takes seconds, when they run.
from lldlib.cli.lab import print_heldout, set_up
from lldlib.cli.options import Evaluate, Serve
from lldlib.config import RolloutConfig, train_config_from
from lldlib.recipes import collapse_config


def evaluate_command(command: Evaluate) -> int:
    """Benchmarks where a folder is named, else the held-out questions of the world."""
    if (command.run is None) == (command.policy is None):
        raise ValueError("name what to evaluate: either --run DIR or --policy NAME")
    if command.run is None and command.checkpoint is not None:
        raise ValueError("--checkpoint belongs to --run: a policy has no checkpoints")
    if command.benchmarks is not None:
        return _benchmarks(command)
    if command.out is not None or command.corpus is not None:
        raise ValueError("--out and --corpus belong to benchmarks: name their folder, --benchmarks")
    set_up()
    policy, rollout = _policy(command)
    print_heldout(policy, rollout)
    return 0


def _policy(command: Evaluate) -> tuple[Any, RolloutConfig]:
    from lldlib.evaluate.heldout import policy_of
    from lldlib.policy.load import load_as
    from lldlib.runs.folder import Run

    if command.run is None:
        policy = load_as(command.policy, command.load)
        return policy, collapse_config("grpo", seed=0).rollout
    run = Run(command.run)
    return policy_of(run, command.checkpoint), train_config_from(run.config).rollout


def _benchmarks(command: Evaluate) -> int:
    from lldlib.evaluate.exam import Exam, prediction_file
    from lldlib.evaluate.scores import compare, read_predictions, score_task
    from lldlib.retrieval import NoRetriever
    from lldlib.retrieval.choose import open_retriever
    from lldlib.world.answers import need_math_verify
    from lldlib.world.benchmarks import find_tasks, load_benchmark, load_from_hub

    if command.out is None:
        raise ValueError("name a folder for the predictions: --out DIR")
    command.exam.check()
    folder = None if str(command.benchmarks) == "hub" else command.benchmarks
    tasks = find_tasks(command.tasks, folder)
    if any(task.kind == "maths" for task in tasks):
        need_math_verify()
    questions = {
        task.name: load_benchmark(task, folder) if folder else load_from_hub(task) for task in tasks
    }
    if any(task.kind == "qa" for task in tasks):
        retriever = open_retriever(command.retriever, command.corpus, command.index)
    else:  # maths is answered without search
        retriever = NoRetriever()
    exam = Exam(_policy(command)[0], retriever, command.exam, command.out, _names(command))
    scores, pairs = [], []
    for task in tasks:
        answers = exam.ask(task, questions[task.name], progress=True)
        scores.append(score_task(task.title, task.kind, answers))
        if command.against is not None:
            others = read_predictions(prediction_file(command.against, task))
            pairs.append(compare(task.title, answers, others))
    _write(command, scores, pairs)
    return 0


def _names(command: Evaluate) -> dict[str, Any]:
    """What the answers depend on besides the exam's own settings."""
    return {
        "policy": command.policy,
        "run": None if command.run is None else str(command.run),
        "checkpoint": command.checkpoint,
        "load": asdict(command.load),
        "retriever": command.retriever,
        "corpus": None if command.corpus is None else command.corpus.name,
    }


def _write(command: Evaluate, scores: list[Any], pairs: list[Any]) -> None:
    from lldlib.evaluate.tables import evaluation_report

    report = evaluation_report(command.policy or str(command.run), scores, pairs)
    summary = {"tasks": [s.summary() for s in scores], "against": [asdict(p) for p in pairs]}
    text = json.dumps(_names(command) | summary, indent=2, ensure_ascii=False) + "\n"
    Path(command.out, "summary.json").write_text(text, encoding="utf-8")
    Path(command.out, "table.md").write_text(report, encoding="utf-8")
    print(report)
    print(f"answers: {command.out}")


def serve_command(command: Serve) -> int:
    """Open the corpus, bind the port, say where, and serve until interrupted."""
    if importlib.util.find_spec("fastapi") is None or importlib.util.find_spec("uvicorn") is None:
        raise ValueError("serving needs fastapi and uvicorn: pip install -e '.[benchmarks]'")
    from lldlib.retrieval.choose import open_bm25
    from lldlib.retrieval.serve import make_app, serve

    app = make_app(open_bm25(command.corpus, command.index), command.topk)
    serve(app, command.host, command.port, lambda url: print(f"serving {url}", flush=True))
    return 0
