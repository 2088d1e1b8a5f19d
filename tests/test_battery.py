"""The battery's CPU form: a part that is run, one that stops in time, what a file lacks."""

import json

import pytest
import torch
from bench import battery, paper


def record(**parts) -> dict:
    return {"about": {"small": False}, "parts": parts}


@pytest.mark.long
def test_a_part_of_it_runs_on_the_cpu_and_is_shown(tmp_path):
    path = battery.run(tmp_path, 300.0, True, ["shapes 0.5B"])
    found = json.loads(path.read_text())
    part = found["parts"]["shapes 0.5B"]
    assert found["about"]["small"] and part["error"] is None
    names = [finding["name"] for finding in part["findings"]]
    assert all(any(n.startswith(w) for n in names) for w in battery.EXPECTED["shapes 0.5B"])
    rates = [f["tokens_per_second"] for f in part["findings"] if "tokens_per_second" in f]
    assert len(rates) == 11 and min(rates) > 0
    lacks = battery.check(found)
    assert "loop: not run" in lacks and not any(line.startswith("shapes 0.5B") for line in lacks)
    battery.show(path)
    assert "0.5B bf16 rollout second" in path.with_suffix(".md").read_text()
    assert path.with_suffix(".svg").exists()


def test_a_part_without_time_is_not_begun_and_a_slow_one_is_stopped(tmp_path):
    path = battery.run(tmp_path, 5.0, True, ["tiny"])
    assert not path.exists() or json.loads(path.read_text())["parts"]["tiny"]["error"]
    found = {"error": None}
    assert list(battery.findings("tiny", "cpu", 0.5, True, found)) == []
    assert found["error"] == "stopped after 0 s"


def test_what_a_file_lacks():
    loop = {"error": None, "findings": [{"name": "loop llds", "equal_rewards": False}]}
    lines = battery.check(record(loop=loop))
    assert "loop llds: rewards differ from the CPU's" in lines
    assert "tiny: not run" in lines and "shapes 7B: not run" in lines
    left = [{"name": f"7B rollout {n}, left behind", "caches": n / 2} for n in (1, 2)]
    lines = battery.check(record(**{"shapes 7B": {"error": None, "findings": left}}))
    assert [line for line in lines if "caches" in line] == [
        "7B rollout 2, left behind: 1.00 caches"
    ]
    none = {"error": "a\nout of memory", "findings": [{"name": "7B qlora", "missing": "x"}]}
    lines = battery.check(record(**{"shapes 7B": none}))
    assert "shapes 7B: out of memory" in lines and "7B qlora: missing x" in lines
    assert "shapes 7B: nothing found for '7B bf16 rollout'" in lines


def test_bytes_and_operations_of_a_product_are_counted():
    left, right = torch.zeros(4, 8), torch.zeros(8, 16)
    with paper.Count() as count:
        out = left @ right
        out.view(-1)
    assert count.operations == 2 * 4 * 8 * 16 and count.launches == 1
    assert count.product_bytes == 4 * (4 * 8 + 8 * 16 + 4 * 16) and count.bytes == 0
