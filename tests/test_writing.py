"""What commands write: one writer a folder, nothing of others touched, a full disk in one line."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from lldlib.cli import main
from lldlib.files import UNFINISHED, claim, new_folder, write_whole
from lldlib.runs import folder as runlog
from lldlib.runs.folder import METRICS, Run, RunWriter

pytestmark = pytest.mark.skipif(runlog.fcntl is None, reason="no locks here")
LINE = json.dumps({"step": 0, "reward": 0.5}) + "\n"


def error_of(capsys) -> str:
    text = capsys.readouterr().err
    assert text.count("\n") == 1, text
    return text


# -- one writer ----------------------------------------------------------------------------------


def test_a_second_writer_is_refused_until_the_first_has_closed(tmp_path):
    writer = RunWriter.create(tmp_path / "run", {})
    writer.metrics(0, {"reward/mean": 0.5})
    for _ in range(2):
        with pytest.raises(BlockingIOError, match="run is in use by another run: wait until"):
            RunWriter.resume(tmp_path / "run", 0)
    assert len(Run(tmp_path / "run").metrics) == 1  # the refused one has dropped nothing
    writer.close()
    RunWriter.resume(tmp_path / "run", 1).metrics(1, {"reward/mean": 0.5})
    assert len(Run(tmp_path / "run").metrics) == 2


HOLDER = """
import sys, time
from pathlib import Path
from lldlib.runs.folder import RunWriter
writer = RunWriter(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_the_lock_holds_between_processes_and_dies_with_them(tmp_path, capsys, micro):
    """A second `train --resume` is refused while the first lives; kill -9 leaves no lock behind."""
    out = tmp_path / "run"
    grid = [f"{name}={value}" for name, value in (micro | {"eval_every": 0}).items()]
    assert main(["sweep", "--grid", "method=grpo", "seed=0", *grid, "--out", str(out)]) == 0
    (cell,) = (path for path in out.iterdir() if path.is_dir())
    before = (cell / METRICS).read_bytes()
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(cell)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout.readline() == b"held\n"
        capsys.readouterr()
        assert main(["train", "--resume", "--out", str(cell), "--steps", "3"]) == 2
        assert "is in use by another run" in error_of(capsys)
        holder.send_signal(signal.SIGKILL)
    assert (cell / METRICS).read_bytes() == before
    RunWriter.resume(cell, 2).close()


# -- a full disk -----------------------------------------------------------------------------------


def test_a_log_line_on_a_full_disk_is_one_error_and_no_half_line(tmp_path):
    writer = RunWriter.create(tmp_path / "run", {})
    writer.metrics(0, {"reward/mean": 0.5})
    whole, file = writer._files[METRICS], (tmp_path / "run" / METRICS)

    class Full:
        """A disk with room for ten bytes."""

        tell, truncate = whole.tell, whole.truncate

        room = 10

        def write(self, line):
            if not self.room:
                raise OSError(28, "No space left on device")
            line, self.room = line[: self.room], 0
            return whole.write(line)

    writer._files[METRICS] = Full()
    with pytest.raises(OSError, match=r"cannot write .*metrics.jsonl \(No space left on device\)"):
        writer.metrics(1, {"reward/mean": 0.5})
    assert file.read_text() == '{"step": 0, "reward/mean": 0.5}\n'
    writer._files[METRICS] = whole  # there is room again
    writer.metrics(1, {"reward/mean": 0.25})
    assert Run(tmp_path / "run").column("reward/mean") == [0.5, 0.25]


@pytest.mark.parametrize(
    "error", [SafetensorError("No space left on device"), OSError(28, "No space left on device")]
)
def test_a_checkpoint_on_a_full_disk_is_one_error_and_leaves_nothing(tmp_path, monkeypatch, error):
    writer = RunWriter.create(tmp_path / "run", {})
    writer.checkpoint(0, {"w": torch.ones(1)}, {})

    def full(tensors, path):
        path.write_bytes(b"half")
        raise error

    monkeypatch.setattr(runlog, "save_file", full)
    with pytest.raises(OSError, match=r"cannot write .*step_000001 \(.*No space left.*: make room"):
        writer.checkpoint(1, {"w": torch.ones(1)}, {})
    assert [p.name for p in (tmp_path / "run" / "checkpoints").iterdir()] == ["step_000000"]


def test_train_on_a_full_disk_is_one_line(tmp_path, micro, capsys, monkeypatch):
    def full(tensors, path):
        raise SafetensorError("No space left on device")

    monkeypatch.setattr(runlog, "save_file", full)
    arguments = ["--policy", str(micro["policy"]), "--steps", "2", "--rollout.problems", "4"]
    assert main(["train", *arguments, "--out", str(tmp_path / "run")]) == 2
    assert "cannot write" in error_of(capsys)


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path, monkeypatch):
    write_whole(tmp_path / "x.txt", "old")
    (tmp_path / f"x.txt{UNFINISHED}").mkdir()  # writing there fails
    with pytest.raises(OSError, match=r"cannot write .*x.txt \(Is a directory\): make room"):
        write_whole(tmp_path / "x.txt", "new")
    assert (tmp_path / "x.txt").read_text() == "old"
    with pytest.raises(OSError, match=r"cannot write .*y.txt"):
        write_whole(tmp_path / "x.txt" / "y.txt", "new")


# -- folders of others -----------------------------------------------------------------------------


def command(name: str, folder, log) -> list[str]:
    """A call of each command that writes a folder, good but for the folder."""
    corpus = ["--corpus", str(log)]
    return {
        "train": ["train", "--policy", "tiny", "--out", str(folder)],
        "demo": ["demo", "--out", str(folder)],
        "sweep": ["sweep", "--grid", "method=grpo", "seed=0", "--out", str(folder)],
        "warmstart": ["warmstart", "--out", str(folder)],
        "sft": ["sft", "--files", str(log), "--out", str(folder)],
        "report": ["report", "x", "--out", str(folder)],
        "diagnose": ["diagnose", str(log), "--out", str(folder)],
        "serve": ["serve", *corpus, "--index", str(folder)],
    }[name]


@pytest.mark.parametrize("held", ["notes.txt", "work/paper.tex", "index.html"])
@pytest.mark.parametrize(
    "name", ["train", "demo", "sweep", "warmstart", "sft", "report", "diagnose", "serve"]
)
def test_a_folder_of_others_is_refused_and_stays_as_it_is(name, held, tmp_path, capsys):
    if name == "serve":
        pytest.importorskip("bm25s", reason="bm25s is not installed (extra `benchmarks`)")
    log = tmp_path / "log.jsonl"
    log.write_text(LINE * 30)
    file = tmp_path / "mine" / held
    file.parent.mkdir(parents=True)
    file.write_text("mine")
    assert main(command(name, tmp_path / "mine", log)) == 2
    error = error_of(capsys)
    assert f"mine holds {held.partition('/')[0]}, which" in error and "did not make" in error
    assert file.read_text() == "mine"
    found = {
        path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()
    }
    assert found == {"log.jsonl", f"mine/{held}"}


def test_a_folder_that_a_command_made_is_taken_again(tmp_path, capsys):
    log, out = tmp_path / "log.jsonl", str(tmp_path / "page")
    log.write_text("".join(LINE.replace("0,", f"{i},", 1) for i in range(30)))
    for _ in range(2):
        assert main(["diagnose", str(log), "--out", out]) == 0
    assert main(["diagnose", str(log), str(log), "--out", out]) == 0
    assert main(["diagnose", str(log), "--out", out]) == 0
    (tmp_path / "page" / "photo.png").write_bytes(b"mine")
    assert main(["diagnose", str(log), "--out", out]) == 2
    assert "page holds photo.png, which diagnose did not make" in capsys.readouterr().err


def test_an_index_replaces_its_own_files_alone(tmp_path):
    pytest.importorskip("bm25s", reason="bm25s is not installed (extra `benchmarks`)")
    from lldlib.retrieval import disk

    corpus, index = tmp_path / "c.jsonl", tmp_path / "index"
    corpus.write_text('{"id": "x", "title": "red", "text": "cat"}\n')
    disk.open_index(corpus, index)
    corpus.write_text('{"id": "y", "title": "red", "text": "dog again"}\n')
    disk.open_index(corpus, index)  # out of date: made anew
    (index / "notes.txt").write_text("mine")
    disk.open_index(corpus, index)  # good as it is: nothing is replaced
    corpus.write_text('{"id": "z", "title": "red", "text": "a third thing"}\n')
    with pytest.raises(ValueError, match=r"index holds notes.txt, which an index did not make"):
        disk.open_index(corpus, index)
    assert (index / "notes.txt").read_text() == "mine" and (index / disk.SOURCE).exists()
    parent = tmp_path / "indexes"
    disk.build_index(corpus, parent / "corpus.jsonl")  # as runs/index holds the default indexes
    with pytest.raises(ValueError, match=r"indexes holds corpus.jsonl, which an index did"):
        disk.open_index(corpus, parent)
    own = tmp_path / "own" / "corpus.jsonl"  # named as the copy in an index is
    own.parent.mkdir()
    own.write_text('{"id": "x", "title": "red", "text": "cat"}\n')
    with pytest.raises(ValueError, match=r"own holds corpus.jsonl, which an index did not make"):
        disk.open_index(own, own.parent)
    assert own.exists() and (parent / "corpus.jsonl" / disk.SOURCE).exists()


def test_a_killed_cell_goes_on_and_what_lies_in_its_folder_stays(tmp_path, micro):
    """It was removed whole where the run had not begun."""
    from lldlib.recipes import WORLD, train_config
    from lldlib.train.run import describe
    from lldlib.train.sweep import Cell, train_cell

    config = train_config("grpo", 0, recipe=WORLD, **micro | {"eval_every": 0})
    RunWriter.create(tmp_path / "cell", describe(config)).close()  # killed right after this
    (tmp_path / "cell" / "notes.txt").write_text("mine")
    train_cell(
        Cell(tmp_path / "cell", config),
        keep_checkpoints=False,
        report=lambda news: None,
        should_stop=lambda: False,
    )
    assert len(Run(tmp_path / "cell").metrics) == 2
    assert (tmp_path / "cell" / "notes.txt").read_text() == "mine"


def test_resume_removes_only_checkpoints_of_its_own(tmp_path):
    writer = RunWriter.create(tmp_path / "run", {})
    writer.checkpoint(0, {}, {})
    writer.checkpoint(2, {}, {})
    writer.close()
    folder = tmp_path / "run" / "checkpoints"
    for name in ("step_000002.tmp", "step_best", "mine"):
        (folder / name).mkdir()
    RunWriter.resume(tmp_path / "run", 1).close()
    assert sorted(p.name for p in folder.iterdir()) == ["mine", "step_000000", "step_best"]


def test_a_new_folder_is_whole_or_not_there(tmp_path):
    (tmp_path / "run.tmp").mkdir()  # of somebody else
    with new_folder(tmp_path / "run") as fresh:
        (fresh / "x").write_text("1")
        assert not (tmp_path / "run").exists()
    with pytest.raises(KeyError), new_folder(tmp_path / "other") as fresh:
        (fresh / "x").write_text("1")
        raise KeyError
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run", "run.tmp"]


def test_the_folder_one_is_in_is_refused_before_any_work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="is the folder that you are in"), new_folder(Path(".")):
        pytest.fail("the work began")
    assert not list(tmp_path.iterdir())


def test_what_looking_at_a_folder_leaves_in_it_is_nobodys_file(tmp_path):
    for name in (".DS_Store", "._a", "Thumbs.db", "desktop.ini"):
        (tmp_path / name).write_text("")
    (tmp_path / ".ipynb_checkpoints").mkdir()
    claim(tmp_path, "demo", "*.png")


def test_two_that_make_one_folder_leave_that_of_the_first(tmp_path):
    with pytest.raises(FileExistsError) as error, new_folder(tmp_path / "run") as fresh:
        (fresh / "x").write_text("second")
        with new_folder(tmp_path / "run") as other:
            (other / "x").write_text("first")
    assert "another made it meanwhile" in str(error.value) and "\n" not in str(error.value)
    assert (tmp_path / "run" / "x").read_text() == "first"
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_a_folder_is_claimed_by_patterns(tmp_path):
    claim(tmp_path / "new" / "out", "demo", "*.png")
    (tmp_path / "new" / "out" / "a.png").write_text("")
    claim(tmp_path / "new" / "out", "demo", "*.png")
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="file is a file: name a folder"):
        claim(tmp_path / "file", "demo")
    with pytest.raises(OSError, match=r"cannot write .*inside \(Not a directory\): make room"):
        claim(tmp_path / "file" / "inside", "demo")
