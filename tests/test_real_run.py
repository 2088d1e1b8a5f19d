"""Notebook 9's real run, command by command in a bare folder, with a random model of its name."""

import json
import shlex
import shutil
from pathlib import Path

import pytest
import test_families
from test_real_model_notebook import notebook, printed

from lldlib.cli import main
from lldlib.files import read_jsonl
from lldlib.runs.folder import Run

made = test_families.made  # a fixture: a family's policy in a folder
MODEL = "Qwen/Qwen2.5-3B"
# what makes it small enough for a test; a random model is never right, so a coin rewards
SMALL = {
    "prepare": "",
    "sft": "--steps 2 --batch 2 --rows 2 --warmup 1",
    "train": "--steps 2 --rollout.problems 2 --rollout.group-size 2 --rollout.max-tokens 240 "
    "--warmup-batches 0 --eval-every 0 --probe-every 0 --rewards coin",
    "evaluate": "--limit 2 --max-tokens 240",
}


def official(number: int) -> dict:
    """A question in the form of HotpotQA's own files."""
    film, person = f"Film {number}", f"Ann Lee {number}"
    return {
        "_id": f"5a{number}",
        "question": f"In which year was the director of {film} born?",
        "answer": str(1900 + number),
        "type": "bridge",
        "level": "easy",
        "supporting_facts": [[film, 1], [person, 0]],
        "context": [
            [film, [f"{film} is a film.", f" {person} directed it."]],
            [person, [f"{person} was born in {1900 + number}.", " She lives in Rome."]],
            *([f"City {place}", [f"City {place} lies by a lake."]] for place in range(3)),
        ],
    }


def shrunk(command: list[str], files: list[str]) -> list[str]:
    """A printed command with the files' names, a rate, a processor for the card, small sizes."""
    given = {"cuda": ["cpu"], "RATE": ["1e-3"], "FILES": files}
    words = [word for old in command for word in given.get(old, [old])]
    return [*words, *SMALL[command[0]].split()]


@pytest.mark.long
def test_the_printed_commands_run_in_a_bare_folder(made, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(made("Qwen2.5-0.5B", peak=1.0), tmp_path / MODEL)
    files = ["hotpot_train_v1.1.json", "hotpot_dev_distractor_v1.json"]
    for file, numbers in zip(files, (range(8), range(8, 11)), strict=True):
        Path(file).write_text(json.dumps([official(number) for number in numbers]))
    told: list[str] = []
    commands = [shlex.split(line) for line in printed(notebook())]
    for command in commands:
        assert main(shrunk(command, files)) == 0, capsys.readouterr().err
        told.append(capsys.readouterr().out)
        print(shlex.join(shrunk(command, files)), told[-1], sep="\n")
    names = [command[0] for command in commands]
    assert names == ["prepare", "sft", "train", "train", "evaluate", "evaluate", "sft", "evaluate"]
    counts, _, rehearsal, trained, exam, nothing, _, at_once = told
    assert (
        "train.jsonl 8 questions, heldout.jsonl 3" in counts
        and "corpus.jsonl 25 passages" in counts
    )
    assert "100% of the held-out answers stand in their paragraphs" in counts
    assert "questions: 8 to train on, 3 held out" in rehearsal and "to go:" in rehearsal
    assert "run folder: runs/night" in trained
    run = Run(Path("runs/night"))
    assert len(run.metrics) == 2 and run.checkpoints
    assert any(row["grad/norm"] for row in run.metrics)
    assert all("heldout" in text for text in (exam, nothing, at_once))
    for name in ("exam", "nothing", "at_once"):
        answers = list(read_jsonl(Path("runs", name, "predictions", "heldout.jsonl")))
        assert len(answers) == 2
