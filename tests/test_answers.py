"""The doctor's reading of answers: each way to die in words, silence on the living, formats."""

import json
import random
import sys
from pathlib import Path

import pytest

from lldlib.cli import main
from lldlib.doctor import completions
from lldlib.doctor.answers import answers_beside, judge_answers
from lldlib.doctor.completions import Answer, NoAnswers, find_answers, read_answers

DATA = Path(__file__).resolve().parent.parent / "data"
PLACES = "Paris Lima Oslo Accra Quito Hanoi Sofia Tunis Dakar Kyoto Perth Cairo".split()
THINGS = "river bridge museum station harbour market temple garden castle tower school".split()
VERBS = "stands opened closed burned moved grew shrank began ended returned".split()


def healthy(step: int, at: int, **changes) -> Answer:
    """A searcher's answer to a question of its own; never the same twice."""
    draw = random.Random(1000 * step + at)
    place, thing, verb = draw.choice(PLACES), draw.choice(THINGS), draw.choice(VERBS)
    year = draw.randint(1200, 1999)
    question = f"When was the year in which the old {thing} near {place} {verb} ?"
    said = (
        f"<think> I should look up the {thing} of {place} first. </think>\n"
        f"<search> {place} {thing} </search>\n"
        f"<think> The text says that it {verb} in {year}, so this is {draw.choice(THINGS)} work. "
        f"</think>\n<answer> {year} </answer>"
    )
    given = {"step": step, "question": question, "text": said, "score": 1.0} | changes
    return Answer(**given)


def run(late=None, steps: int = 20, each: int = 4) -> list[Answer]:
    """Healthy answers; from the middle on those of `late`, a function of the healthy one."""
    out = [healthy(step, at) for step in range(steps) for at in range(each)]
    return [late(a) if late and a.step >= steps // 2 else a for a in out]


def told(late) -> set[str]:
    return {finding.key for finding in judge_answers(run(late)).findings}


def changed(text):
    """Late answers with a text made of the healthy one's."""
    return lambda answer: Answer(answer.step, answer.question, text(answer), 0.0)


def noise(answer: Answer) -> str:
    draw = random.Random(answer.text)
    words = ["".join(draw.choices("bcdfghjklmnpqrstvwxz", k=7)) for _ in range(20)]
    return f"<think> {' '.join(words)} </think> <answer> {words[0]} </answer>"


def mojibake(answer: Answer) -> str:
    return answer.text.replace("look up", "\u0431\u0434\u0436\u0ca0\u0ca1\u0ca2\ufffd\ufffd" * 4)


def loop(answer: Answer) -> str:
    return answer.text.replace("first.", "so it is Paris " * 30)


def copied(answer: Answer) -> str:
    place = answer.text.index("<search>"), answer.text.index("</search>")
    return answer.text[: place[0]] + f"<search> {answer.question} " + answer.text[place[1] :]


TEMPLATE = (
    "<think> I know this well and need no search at all. </think> <search> it </search> "
    "<think> Yes, that is so, as I said. </think> <answer> 1850 </answer>"
)


@pytest.mark.parametrize(
    ("late", "wanted"),
    [
        (changed(loop), {"repetition"}),
        (changed(lambda a: "!" * 200), {"repetition", "tags", "avoidance"}),
        (changed(lambda a: a.text.replace("</search>", "</answer>")), {"tags"}),
        (changed(noise), {"gibberish"}),
        (changed(mojibake), {"gibberish"}),
        (changed(lambda a: a.text[: len(a.text) // 3]), {"cut", "avoidance"}),
        (changed(lambda a: "<think> </think> <answer> </answer>"), {"empty"}),
        (changed(lambda a: ""), {"empty", "tags", "avoidance"}),
        (changed(lambda a: a.text.replace("answer>", "think>")), {"avoidance"}),
        (changed(lambda a: a.text.replace("it ", "I cannot determine it ")), {"avoidance"}),
        (changed(lambda a: TEMPLATE), {"template"}),
        (changed(copied), {"copying"}),
    ],
)
def test_each_death_in_words_is_told(late, wanted):
    assert wanted <= told(late)


@pytest.mark.parametrize(
    ("late", "key"),
    [
        (changed(loop), "repetition"),
        (changed(noise), "gibberish"),
        (changed(lambda a: TEMPLATE), "template"),
        (changed(copied), "copying"),
        (changed(lambda a: a.text.replace("it ", "I cannot determine it ")), "avoidance"),
    ],
)
def test_and_no_other(late, key):
    found = judge_answers(run(late)).findings
    assert [finding.key for finding in found] == [key]
    assert found[0].step == 10 and found[0].early == 0.0 and found[0].late == 1.0


def test_a_recovery_is_told_with_its_end():
    answers = [changed(loop)(a) if 5 <= a.step < 10 else a for a in run()]
    (found,) = judge_answers(answers).findings
    assert found.key == "repetition" and found.step == 5 and found.last == 0.0
    assert "in 0% of the answers at the start, in 100% later (from step 5 on), 0% at the end" in (
        found.says
    )


def test_healthy_runs_are_silent():
    assert judge_answers(run()).findings == ()
    longer = changed(lambda a: a.text.replace("first.", "first, then read what it says there."))
    assert told(longer) == set()
    shorter = changed(lambda a: a.text[a.text.index("<search>") :].replace("<think>", "<think> so"))
    assert told(shorter) == set()
    # one-word answers from the start are a task, not a death
    words = [Answer(step, f"Is {p} a town ?", "yes") for step in range(20) for p in PLACES[:4]]
    assert judge_answers(words).findings == ()


def test_a_run_that_is_broken_from_the_start_is_told():
    cut = [healthy(step, at, cut=True) for step in range(20) for at in range(4)]
    (found,) = judge_answers(cut).findings
    assert found.key == "cut" and "in 100% of the answers from the start" in found.says
    one_step = [healthy(7, at, cut=True) for at in range(10)]
    assert [f.key for f in judge_answers(one_step).findings] == ["cut"]


def test_too_few_answers_are_not_judged():
    few = judge_answers(run(changed(loop), steps=4, each=1))
    assert few.findings == () and few.count == 4
    (said,) = few.lines()
    assert said.startswith("early and late are not compared, under 8 answers a quarter: 4 answers")
    assert (
        "no sign of death in words: 80 answers of steps 0 to 19" in judge_answers(run()).lines()[0]
    )


def test_early_and_late_answers_stand_side_by_side():
    report = judge_answers(run(changed(loop)))
    head, first, second = report.examples
    assert head == ("early, from step 0", "late, from step 10")
    assert first[0].startswith("<think> I should look up") and "so it is Paris so it is" in first[1]
    assert len(second[1]) == 280 and second[1].endswith("…")
    odd = judge_answers(run(changed(lambda a: "\x1b[31mred\x07 " + loop(a))))
    assert odd.examples[1][1].startswith("red <think>")  # nothing that a terminal would obey
    head, *rows = report.shares
    assert head == ("share of answers", *(f"from step {s}" for s in (0, 5, 10, 15)))
    assert ("Repetition", "0%", "0%", "100%", "100%") in rows


# -- our own runs ----------------------------------------------------------------------------------


def test_our_dying_run_is_told_and_the_living_are_silent():
    main = DATA / "atlas" / "main"
    dying = answers_beside(main / "grpo-seed0")
    assert "avoidance" in {finding.key for finding in dying.findings}
    for name in ("grpo_best_rate-seed0", "llds-seed0"):
        assert answers_beside(main / name).findings == ()


# -- formats ---------------------------------------------------------------------------------------


def lines(file: Path, rows) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def test_verl_writes_a_file_a_step(tmp_path):
    log = tmp_path / "train.log"
    log.write_text("step:1 - critic/score/mean:0.5\n")
    for step in (2, 10):
        prompt = "system\nYou are helpful.\nuser\nWho wrote it?\nassistant\n"
        said = "<search> it </search><information> not mine </information><answer> x </answer>"
        row = {"input": prompt, "output": said, "gts": "x", "score": 0.5, "step": step}
        lines(tmp_path / "rollout_data" / f"{step}.jsonl", [row, row])
    assert find_answers(log) == tmp_path / "rollout_data"
    found = read_answers(tmp_path / "rollout_data")
    assert [answer.step for answer in found] == [2, 2, 10, 10]
    assert found[0].question == "Who wrote it?" and found[0].score == 0.5
    assert "not mine" not in found[0].text and found[0].text.endswith("<answer> x </answer>")


def test_the_step_is_in_the_name_where_the_row_has_none(tmp_path):
    lines(tmp_path / "120.jsonl", [{"input": "a", "output": "b"}])
    assert read_answers(tmp_path)[0].step == 120


def test_trl_writes_chats(tmp_path):
    prompt = [{"role": "system", "content": "s"}, {"role": "user", "content": "Who?"}]
    said = [
        {"role": "assistant", "content": "hm", "tool_calls": [{"name": "search"}]},
        {"role": "tool", "content": "a passage"},
        {"role": "assistant", "content": [{"type": "text", "text": "he"}]},
    ]
    row = {"step": 3, "prompt": prompt, "completion": said, "advantage": 0.1}
    (answer,) = read_answers(lines(tmp_path / "completions.jsonl", [row]))
    assert answer.step == 3 and answer.question == "Who?" and answer.score is None
    assert answer.text == 'hm <tool_call>{"name": "search"}</tool_call>\nhe'


def test_parquet_without_pyarrow_is_one_line(tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "completions").mkdir()
    file = tmp_path / "completions" / "completions_00010.parquet"
    file.write_bytes(b"PAR1")
    with pytest.raises(NoAnswers, match="reading parquet needs pyarrow: pip install pyarrow"):
        read_answers(file)
    assert answers_beside(tmp_path) is None  # found beside a log, they only go unread
    assert "the answers beside the log are not read" in caplog.text and "pip install" in caplog.text
    with pytest.raises(NoAnswers, match="pip install pyarrow"):
        answers_beside(tmp_path, tmp_path / "completions")


def test_parquet_is_read(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = pyarrow.table({"step": [5, 5], "prompt": ["a", "b"], "completion": ["c", "d"]})
    parquet.write_table(table, tmp_path / "completions_00005.parquet")
    assert [(a.step, a.question, a.text) for a in read_answers(tmp_path)] == [
        (5, "a", "c"),
        (5, "b", "d"),
    ]


def test_answers_printed_in_a_console_log_are_read(tmp_path):
    ray = "\x1b[36m(TaskRunner pid=7)\x1b[0m "
    block = (
        "[prompt] system\nBe short.\nuser\nWho?\nassistant\n\n[response] He did.\nTruly.\n"
        "[ground_truth] he\n[score] 0.25\n"
    )
    text = "".join(f"step:{step} - critic/score/mean:0.5\n{block}" for step in (10, 20, 30, 40))
    log = tmp_path / "console.log"
    log.write_text("".join(ray + line + "\n" for line in text.splitlines()))
    found = read_answers(find_answers(log))
    assert [answer.step for answer in found] == [10, 20, 30, 40]
    assert found[0] == Answer(10, "Who?", "He did.\nTruly.", 0.25)


def test_a_plain_log_has_no_answers(tmp_path):
    log = tmp_path / "plain.log"
    log.write_text("{'loss': 0.1, 'reward': 0.5}\n" * 9)
    assert find_answers(log) is None and answers_beside(log) is None
    with pytest.raises(NoAnswers, match="no answers found"):
        read_answers(log)
    metrics = lines(tmp_path / "metrics.jsonl", [{"step": 1, "reward": 0.1}] * 9)
    assert answers_beside(metrics) is None


def test_half_written_and_strange_rows_are_left_out(tmp_path):
    file = tmp_path / "rollouts.jsonl"
    good = json.dumps({"step": 1, "prompt": "a", "completion": "b"})
    file.write_text(f'{good}\n[1, 2]\n"x"\n{{"step": 2}}\n{good[:20]}')
    assert len(read_answers(file)) == 1
    huge = json.dumps({"step": 10**400, "completion": "c", "score": float("nan")})
    assert [
        (a.step, a.score) for a in read_answers(lines(tmp_path / "7.jsonl", [json.loads(huge)]))
    ] == [(7, None)]
    assert find_answers(tmp_path) == file


def test_of_a_large_step_a_part_is_read(tmp_path):
    rows = [{"input": str(i), "output": "b", "step": s} for s in (1, 2) for i in range(100)]
    assert len(read_answers(lines(tmp_path / "all.jsonl", rows))) == 128


# -- on the page -----------------------------------------------------------------------------------


def curves(folder: Path) -> Path:
    rows = ({"step": step, "reward": 0.5 + 0.01 * (step % 3)} for step in range(20))
    return lines(folder / "metrics.jsonl", rows)


def test_the_page_has_the_answers_that_lie_beside_a_log(tmp_path, capsys):
    rows = [
        {"step": a.step, "prompt": a.question, "completion": a.text} for a in run(changed(loop))
    ]
    lines(tmp_path / "rollouts.jsonl", rows)
    log = curves(tmp_path)
    assert main(["diagnose", str(log), "--out", str(tmp_path / "page")]) == 0
    text = capsys.readouterr().out
    assert "What it wrote" in text and "Repetition: a text of which half and more" in text
    assert "late, from step 10" in text
    page = (tmp_path / "page" / "index.html").read_text()
    assert "<th>early, from step 0</th><th>late, from step 10</th>" in page
    assert "<td>Repetition</td><td>0%</td>" in page
    told = json.loads((tmp_path / "page" / "index.json").read_text())["answers"]
    assert [finding["key"] for finding in told["findings"]] == ["repetition"]


def test_answers_that_lie_elsewhere_are_named(tmp_path, capsys):
    elsewhere = lines(tmp_path / "far" / "texts.jsonl", [{"prompt": "a", "completion": "b"}] * 9)
    log = curves(tmp_path / "log")
    assert main(["diagnose", str(log), "--answers", str(elsewhere)]) == 0
    assert "under 8 answers a quarter: 9 answers" in " ".join(capsys.readouterr().out.split())
    assert main(["diagnose", str(log), "--answers", str(log)]) == 2
    assert "no answers found" in capsys.readouterr().err
    assert main(["diagnose", str(log), str(log), "--answers", str(elsewhere)]) == 2
    assert "--answers belongs to one log" in capsys.readouterr().err
    assert main(["diagnose", str(log)]) == 0 and "What it wrote" not in capsys.readouterr().out


def test_of_many_answers_a_part_is_judged_and_all_are_counted():
    report = judge_answers(run(changed(loop), steps=200, each=4))
    (found,) = report.findings
    assert report.count == 800 and found.key == "repetition" and found.late == 1.0


@pytest.mark.parametrize("start", ['{"completion": "', "Response: "])
def test_a_line_without_end_is_not_held_whole(tmp_path, monkeypatch, start):
    monkeypatch.setattr(completions, "LINE", 1000)
    file = tmp_path / "log.jsonl"
    file.write_text(f"{start}{'a' * 5000}\n", encoding="utf-8")
    with pytest.raises(NoAnswers, match="a line of over 1,000 characters; break it up"):
        read_answers(file)
