"""Names and texts of others: no page takes them for markup, no terminal for its codes."""

import html.parser
import json
import os
import pickle

import pytest
import torch
from helpers import script

from lldlib.cli import main
from lldlib.doctor.page import as_html, diagnose, several_html
from lldlib.policy.load import load_policy
from lldlib.recipes import train_config
from lldlib.runs.fate import fate_of
from lldlib.runs.folder import Run, RunWriter
from lldlib.show.predict import Predict
from lldlib.show.says import said_html, transcripts
from lldlib.show.spiral import spiral_page
from lldlib.show.views import fates_html
from lldlib.train.run import describe

TAG = "zqx"  # an element, and the end of an attribute's name, that no page of ours has
ENDS = ("", '">', "'>", "-->", *(f"</{e}>" for e in ("script", "style", "title", "textarea", "td")))
CODES = "\x1b[31m\x1b]0;title\x07\x9b2J\x08\r"
HOSTILE = "".join(f'{end}<{TAG} on{TAG}="1">' for end in ENDS) + f"\" on{TAG}='1' {CODES}"


class Page(html.parser.HTMLParser):
    """Collects what of a page is markup and comes from others."""

    def __init__(self, text: str):
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        names = [tag, *(name for name, _ in attrs)]
        self.found += [name for name in names if TAG in name]
        for name, value in attrs:
            if name == "srcdoc":
                self.found += Page(value).found


def hostile_run(folder, **more) -> Run:
    """A run folder of which every text is a stranger's."""
    config = describe(train_config("grpo", 0, steps=3)) | {"method": HOSTILE} | more
    writer = RunWriter.create(folder, config)
    turns = [
        {"role": role, "text": HOSTILE.replace(" ", ""), "logp": [-0.1] * (role == "action")}
        for role in ("prompt", "action", "environment")
    ]
    record = {"question": HOSTILE, "answers": [HOSTILE], "answer": HOSTILE, "stop": HOSTILE}
    for step in range(3):
        writer.metrics(step, {"reward/mean": 0.1 * step, f"x{HOSTILE.replace('/', '')}/y": 1.0})
        writer.rollout(step, record | {"reward": step % 2, "turns": turns})
        writer.question(step, record | {"reward": 0.0, "turns": turns})
        writer.event(step, "knob", method=HOSTILE, lr=1e-4)
    writer.close()
    return Run(folder)


def test_the_parser_sees_what_is_not_escaped():
    assert len(Page(f"<p>{HOSTILE}</p>").found) == 2 * len(ENDS)
    assert Page(f'<img alt="{HOSTILE}">').found
    assert Page(f'<iframe srcdoc="&lt;{TAG}&gt;"></iframe>').found == [TAG]
    assert not Page(f"<p>{html.escape(HOSTILE)}</p>").found


def pages(run: Run) -> dict[str, str]:
    """Every page and piece of one that is made of a run."""
    records = {HOSTILE: run.rollouts[0]}
    found = diagnose(run.path)[0]
    predict = Predict(HOSTILE, [HOSTILE, "b"], answer=HOSTILE, why=HOSTILE)
    return {
        "spiral": spiral_page([run]),
        "says": said_html(HOSTILE, run),
        "tokens": transcripts(records).value,
        "fates": fates_html({HOSTILE: fate_of(run)}),
        "diagnosis": as_html(found),
        "several": several_html([found, found], [f"{HOSTILE}.html"] * 2),
        "predict": "".join(
            part.value for part in predict.children if isinstance(getattr(part, "value", 0), str)
        )
        + predict._repr_mimebundle_()["text/html"],
    }


def test_no_page_takes_a_text_for_markup(tmp_path):
    for name, page in pages(hostile_run(tmp_path / "run")).items():
        assert Page(page).found == [], name
        assert TAG in page or name in ("diagnosis", "several"), f"{name} shows nothing of it"


def test_the_labs_words_are_no_markup(tmp_path, monkeypatch):
    hands = script("trust/hands.py")
    with hands.cheap():
        run = hands.TrainingRun(train_config("grpo", 0, **hands.SMALL), tmp_path / "run")
        lab = hands.LiveLab({HOSTILE: run})
        lab._tell(HOSTILE)
        for view in lab.view.options:
            lab.view.value = view
            for part in (lab.status, lab.table, lab.words):
                assert Page(part.value).found == []
        assert TAG in lab.status.value
        run.writer.close()


COMMANDS = {
    "report": lambda run, out: ["report", run, "--out", out],
    "explore": lambda run, out: ["explore", run, "--out", f"{out}.html"],
    "diagnose": lambda run, out: ["diagnose", run],
    "diagnose as Markdown": lambda run, out: ["diagnose", run, "--markdown"],
    "evaluate": lambda run, out: ["evaluate", "--run", run],
    "resume": lambda run, out: ["train", "--out", run, "--resume"],
    "policy": lambda run, out: ["evaluate", "--policy", run],
    "fit": lambda run, out: ["fit", "--policy", run, "--gpu", "8"],
    "sft": lambda run, out: ["sft", "--files", f"{run}/rollouts.jsonl", "--out", out],
    "prepare": lambda run, out: ["prepare", "nq", "--from", f"{run}/rollouts.jsonl", "--out", out],
    "serve": lambda run, out: ["serve", "--corpus", f"{run}/rollouts.jsonl"],
    "check-llds": lambda run, out: ["check-llds", f"{run}/evil.py:f"],
    "benchmarks": lambda run, out: [
        *("evaluate", "--policy", "tiny", "--benchmarks", run, "--tasks", "rollouts.jsonl"),
        *("--out", out),
    ],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_hands_codes_to_a_terminal(name, tmp_path, capsys):
    path = tmp_path / f"run{CODES}"
    run = hostile_run(path)
    (path / "evil.py").write_text(f"raise ValueError({CODES!r})", encoding="utf-8")
    (path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": CODES}))
    main(COMMANDS[name](str(run.path), str(tmp_path / "out")))
    said = "".join(capsys.readouterr())
    assert said and not [c for c in said if not (c.isprintable() or c in "\n\t")]


def test_a_name_in_a_run_names_no_file_elsewhere(tmp_path):
    runs = []
    for lr in (1e-4, 2e-4):
        for updates in (1, 2):
            runs.append(tmp_path / f"run{lr}{updates}")
            hostile_run(runs[-1], method="/../../x", lr=lr, updates_per_batch=updates)
    out = tmp_path / "inner" / "out"
    assert main(["report", *map(str, runs), "--out", str(out)]) == 0
    assert (out / "sweep__x.png").is_file()
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([*(r.name for r in runs), "inner"])


class Evil:
    """Its unpickling makes a file."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return os.mkdir, (str(self.file),)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.safetensors"])
def test_a_pickled_policy_runs_no_code(name, tmp_path):
    folder, mark = tmp_path / "policy", tmp_path / "mark"
    folder.mkdir()
    load_policy("tiny").tokenizer.save_pretrained(folder)
    load_policy("tiny").model.config.save_pretrained(folder)
    torch.save({"weight": Evil(mark)}, folder / name)
    with pytest.raises(ValueError, match="cannot load the policy") as error:
        load_policy(str(folder))
    assert not mark.exists() and "\n" not in str(error.value)


def test_a_pickled_checkpoint_runs_no_code(tmp_path):
    run, mark = hostile_run(tmp_path / "run"), tmp_path / "mark"
    folder = run.path / "checkpoints" / "step_000002"
    folder.mkdir(parents=True)
    (folder / "state.json").write_text("{}")
    (folder / "tensors.safetensors").write_bytes(pickle.dumps(Evil(mark)))
    with pytest.raises(FileNotFoundError, match="holds no checkpoint"):
        run.load_checkpoint(None)
    assert not mark.exists()
    pickle.loads(pickle.dumps(Evil(mark)))
    assert mark.exists()  # so it could have


def test_what_a_link_points_to_stays_as_it_is(tmp_path):
    run = hostile_run(tmp_path / "run")
    outside = tmp_path / "outside"
    outside.write_text('{"step": 0, "group/x": 1}\n{"step": 1, "group/x": 1}\n')
    (run.path / "metrics.jsonl").unlink()
    (run.path / "metrics.jsonl").symlink_to(outside)
    writer = RunWriter.resume(run.path, 1)
    writer.metrics(1, {"reward/mean": 0.5})
    writer.close()
    assert len(outside.read_text().splitlines()) == 2
    assert [row["step"] for row in run.metrics] == [0, 1]
