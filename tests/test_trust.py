"""Small versions of the trials in data/trust, each with a fault planted that it must find."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from helpers import script
from small_tokenizers import qwen2

from lldlib.retrieval import BM25Retriever, Passage, client
from lldlib.rollout.loop import Rollout, TokenText
from lldlib.show.steering import Steering, train_hindmost
from lldlib.world.protocol import Action

transcripts = script("trust/transcripts.py")
service = script("trust/service.py")
strangers = script("trust/strangers.py")
hands = script("trust/hands.py")
kills = script("trust/kills.py")
load = script("trust/load.py")


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", ["words", "qwen2"])
def test_no_text_of_others_acts(kind, seed):
    tokenizer = transcripts.words() if kind == "words" else qwen2()
    ends, wrong = transcripts.check(tokenizer, seed)
    assert wrong == [] and ends.total() == transcripts.AT_ONCE and len(ends) >= 2


def test_the_trial_sees_a_special_token_of_another(monkeypatch):
    monkeypatch.setattr(TokenText, "_encode", lambda self, *p: tuple(self._tokens("".join(p))))
    _, wrong = transcripts.check(qwen2(), 1)
    assert any("control token" in fault for fault in wrong)


def test_the_trial_sees_a_passage_that_is_read_for_tags(monkeypatch):
    real = Rollout._act

    def act(self, row, action):
        seen = "".join(self.text.piece(t) for turn in row.turns[1:] for t in turn.tokens)
        found = "answer" if "<answer> Lima </answer>" in seen else action.kind
        return real(self, row, Action(found, "Lima" if found != action.kind else action.content))

    monkeypatch.setattr(Rollout, "_act", act)
    wrong = [fault for seed in range(4) for fault in transcripts.check(qwen2(), seed)[1]]
    assert any("in place of" in fault for fault in wrong)
    assert any("another reward" in fault for fault in wrong)


def test_a_service_that_breaks_gives_no_wrong_passage(monkeypatch):
    monkeypatch.setattr(service, "bomb", lambda: b"\x1f\x8b" + b" " * 1000)
    monkeypatch.setattr(client, "MOST", 2_000_000)  # so that "endless" ends soon
    ways, wrong = service.trial(60, seed=3)
    assert wrong == [] and ways.total() == 60
    assert {way for _, way in ways} == {"found", "error"}


def test_the_trial_sees_a_wrong_passage(monkeypatch):
    real = client.read_answer
    monkeypatch.setattr(client, "read_answer", lambda data, n: real(data, n)[:1] * n)
    _, wrong = service.trial(12, seed=3)
    assert any("found [[" in fault for fault in wrong)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of means over numbers near 1e100
@pytest.mark.parametrize("name", strangers.READERS)
def test_a_broken_file_is_read_or_refused_by_a_line(name):
    ways, wrong = strangers.trial(name, 60, seed=0)
    assert wrong == [] and ways["refused"] > 5
    assert ways["read"] > 5


def test_the_trial_sees_an_error_that_is_no_refusal(monkeypatch):
    reader = strangers.Reader([{"id": "a"}], lambda file: file.read_bytes().decode().strip()[9])
    monkeypatch.setitem(strangers.READERS, "reckless", reader)
    _, wrong = strangers.trial("reckless", 60, seed=0)
    assert any("IndexError" in fault for fault in wrong)


def test_the_lab_does_what_random_hands_ask_for():
    done, wrong = hands.trial(8, seed=0)
    assert wrong == [] and done["knob"] and done["cell"] and done["interrupt"]


def test_the_trial_sees_a_knob_in_another_run(monkeypatch):
    real = Steering.turn
    monkeypatch.setattr(
        Steering, "turn", lambda self, _, knobs: real(self, [*self.runs][-1], knobs)
    )
    _, wrong = hands.trial(8, seed=0)
    assert any("other settings" in fault for fault in wrong)


def test_a_run_at_its_end_does_not_hold_up_the_others(tmp_path):
    runs = {}
    with hands.cheap():
        for name, done, steps in (("short", 2, 2), ("long", 3, 5), ("other", 4, 5)):
            config = hands.train_config("grpo", 0, **hands.SMALL, steps=steps)
            runs[name] = hands.TrainingRun(config, tmp_path / name)
            for _ in range(done):
                runs[name].step()
        for expected in ([2, 4, 4], [2, 5, 5], [2, 5, 5]):
            train_hindmost(runs)
            assert [run.next_batch for run in runs.values()] == expected
        for run in runs.values():
            run.writer.close()


def test_a_knob_of_the_loss_leaves_the_others_as_they_stand(tmp_path):
    with hands.cheap():
        config = hands.train_config("grpo", 0, **hands.SMALL)
        run = hands.TrainingRun(config, tmp_path / "run")
        steering = Steering({"A": run})
        steering.turn("A", {"llds_coef": 0.3})
        steering.turn("A", {"lp_reg_coef": 0.2})
        loss = replace(config.loss, llds_coef=0.3, lp_reg_coef=0.2)
        assert run.config == replace(config, loss=loss)
        run.writer.close()


def test_a_line_that_is_too_long_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("lldlib.files.LINE", 1000)
    file = tmp_path / "file.jsonl"
    file.write_text('{"step": 0, "id": "' + "a" * 1000 + '"}\n')
    for name in ("questions", "corpus", "facts", "predictions", "metrics", "rollouts"):
        with pytest.raises(ValueError, match="a line of over 1,000 bytes"):
            strangers.READERS[name].read(file)


# -- kills -----------------------------------------------------------------------------------------

# in a process of its own, as one with threads must not fork
KILLS = """
import json, random, sys
from pathlib import Path
import kills
from lldlib.runs import folder as runlog
from lldlib.runs.folder import Run

root, rng = Path(sys.argv[1]), random.Random(0)
lab = kills.Lab(root, ["rewind", "evaluate"])
last = lab.ends["rewind"].points
done = sum(kills.at_point(lab, "rewind", at, rng) for at in range(5, last, last // 3))
kills.second_writer(lab, "evaluate", rng)
kills.cut(lab, "evaluate", rng)
kills.small_files(lab, "evaluate", rng)
wrong, same = list(lab.wrong), sum(n for (_, way), n in lab.ways.items() if way == "the same")
# planted: checkpoints after a rewind stay, and are gone on from though their batches are not logged
runlog._drop_checkpoints = lambda folder, step: None
Run.resumes_at = lambda run: max(dict(run.checkpoints), default=None)
for at in range(last // 2, last):
    if len(lab.wrong) == len(wrong):
        kills.at_point(lab, "rewind", at, rng)
print(json.dumps([wrong, done, same, len(lab.places), lab.wrong[len(wrong):]]))
"""


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="it forks")
def test_what_is_killed_cut_or_met_by_a_second_writer_ends_as_unbroken(tmp_path):
    data = Path(kills.__file__).parent
    paths = os.pathsep.join([str(data.parents[1]), str(data), os.environ.get("PYTHONPATH", "")])
    said = subprocess.run(
        [sys.executable, "-c", KILLS, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        check=True,
        timeout=300,  # a trial that hangs fails, and holds up no other test
    ).stdout
    wrong, done, same, places, planted = json.loads(said.splitlines()[-1])
    assert wrong == [] and done >= 3 and same >= 5 and places >= 2
    assert any("another run, numbers" in fault for fault in planted)


# -- load ------------------------------------------------------------------------------------------


def test_a_service_under_load_is_held_to_the_passage_that_is_known(monkeypatch):
    passages = load.texts(40, seed=0)
    right = BM25Retriever([Passage(str(n), text) for n, text in enumerate(passages)])

    def service(url, config):
        return right

    monkeypatch.setattr(load, "HTTPRetriever", service)
    found = load.load("", passages, 4, 0, lambda done: done < 5)
    assert len(found) == 20 and not any(one.wrong for one in found)
    monkeypatch.setattr(right, "passages", right.passages[::-1])
    wrong = load.load("", passages, 1, 1, lambda done: done < 5)
    assert {one.wrong for one in wrong} == {"another passage"}
