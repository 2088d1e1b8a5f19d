"""CONTRIBUTING's promise to whoever adds a term: the TRL adapter has its setting."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("trl", reason="needs the extra 'trl': run make test-adapters")

from test_contributing import ROOT, carry_out

READS_ENTROPY = {  # the page's term, made to read what TRL has and our masks do not
    "action_mean(term, config": "action_mean(term + x.entropy, config",
    "    _value,\n": '    _value,\n    needs=lambda config: {"entropy"},\n',
}
TRAINING = """
import json, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from trl_runs import settings, some_policy, trainer

told = {}
for coef in (0.0, 0.5):
    out = Path(sys.argv[1])
    run = trainer(settings(out, nll_coef=coef, measure_every=0, num_iterations=1), some_policy())
    run.train()
    told[coef] = run.state.log_history[0]
print(json.dumps(told))
"""


def test_a_term_that_reads_the_entropy_trains_in_trl(tmp_path):
    copy = tmp_path / "copy"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "lldlib", copy / "lldlib", ignore=ignored)
    (copy / "data").symlink_to(ROOT / "data")
    carry_out("A new regularizer", copy)
    file = copy / "lldlib/losses/nll.py"
    text = file.read_text(encoding="utf-8")
    for old, new in READS_ENTROPY.items():
        assert text.count(old) == 1
        text = text.replace(old, new)
    file.write_text(text, encoding="utf-8")
    paths = (copy, ROOT / "tests", Path(__file__).parent)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))}
    command = [sys.executable, "-c", TRAINING, str(tmp_path)]
    ran = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-4000:]
    off, on = json.loads(ran.stdout.splitlines()[-1]).values()
    assert "nll/value" not in off and on["nll/value"] > 0
    assert on["loss"] == pytest.approx(off["loss"] + 0.5 * on["nll/value"], abs=1e-4)
