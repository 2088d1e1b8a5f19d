"""Files of JSON lines that grow by whole runs."""

from lldlib.files import merge_jsonl, read_jsonl


def test_lines_of_the_same_name_are_replaced_and_others_stay(tmp_path):
    path = tmp_path / "runs.jsonl.gz"
    old = [{"run": "a", "step": 0}, {"run": "b", "step": 0}, {"run": "a", "step": 1}]
    assert merge_jsonl(path, old, lambda row: row["run"]) == old
    new = [{"run": "a", "step": 7}]
    held = merge_jsonl(path, new, lambda row: row["run"])
    assert held == [{"run": "b", "step": 0}, {"run": "a", "step": 7}]
    assert [row for _, row in read_jsonl(path)] == held
