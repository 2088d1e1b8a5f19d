"""The doctor on real public logs, by their path; skipped where they are not."""

import importlib.util
import os
from pathlib import Path

import numpy as np
import pytest

from lldlib.doctor.judge import judge
from lldlib.doctor.page import as_html, as_text, diagnose
from lldlib.doctor.readers import Unreadable

LOGS = Path(os.environ.get("LLDLIB_LOGS", "no logs"))
RUNS = Path(__file__).resolve().parents[1] / "data" / "atlas" / "main"
BOARD = importlib.util.find_spec("tensorboard") is not None

# read by hand; where a reader could say either, both; then the step of the collapse and a pattern
LABELS = {
    "tzy_searchr1_verl_console.log": ("collapsed", 301, "tool"),
    "tzy_searchr1_wandb_export.csv": ("collapsed", 301, "tool"),
    "tzy_searchr1_wandb_output.log": ("collapsed", 301, "tool"),
    "agentopd_i80f2v90_wandb_output.log": ("collapsed", 12, "kl in reward"),
    "agentopd_cr3q4lay_wandb_output.log": ("healthy", None, None),
    "agentopd_ry3hgbx5_wandb_output.log": ("healthy", None, None),
    "wordle_lr5e-3_31628.tfevents": ("collapsed", 31, "numbers"),
    "wordle_stage2_trainer_state.json": ("stagnating", None, "reference"),
    "wordle_stage2_mac13809.tfevents": ("stagnating", None, "reference"),
    "unlearn_stage2_trl_gibberish.log": ("stagnating", None, "broken start"),
    "alfworld_grpo_zero_reward.csv": ("stagnating", None, "no signal"),
    "babyai_grpo_base_from1001.csv": ("healthy", None, None),
    "babyai_prefix_fixedgp2.csv": ("healthy", None, None),
    "alfworld_dualtoken_wandb_full.csv": ("healthy", None, None),
    "verldata_qwen05b_gsm8k_ppo.log": ("healthy", None, None),
    "unsloth_llama_grpo_trainer_state.json": ("healthy", None, None),
    "grpoclean2_verilog_trainer_state.json": ("healthy stagnating", None, None),
    "text2sql_trainer_state_1000.json": ("stagnating", None, "hardly moves"),
    "countdown_grpo_metrics.jsonl": ("healthy", None, None),
    "recgrpo_capinf.jsonl": ("healthy", None, None),
    "wx_searchr1_grpo_1-149.log": ("healthy", None, None),
    "nips_rho0.70_seed43.log": ("degrading", None, "spikes"),
    "econ_agent_grpo_verl.log": ("healthy", None, None),
    "hotpotqa_trl_grpo.log": ("stagnating healthy", None, "kl"),
    # the reward rose and holds, but three groups of four score alike, and every answer is cut off
    "kaggle_trl_grpo.log": ("stagnating", None, None),
    # the rewards of single questions under a name that is a guess
    "codegrpo_cn.txt": ("unknown stagnating", None, None),
    "agentopd_do7bl4gg_wandb_output.log": ("healthy", None, None),
    "agentopd_f6sves9c_wandb_output.log": ("healthy", None, None),
    "bitnet_grpo_interleaved.jsonl": ("stagnating", None, None),
    "cogrl_tinker_metrics.jsonl": ("healthy", None, None),
    "cs336_grpo_base.log": ("healthy", None, None),
    "cs336_rl_early_stop.log": ("healthy", None, None),
    "dialogue_ppo_lightning.log": ("stagnating", None, None),
    "dschat_dpo.log": ("unknown", None, None),
    "dschat_step3_rlhf.log": ("healthy", None, None),
    "entropytree_out.txt": ("stagnating", None, None),
    "game_trainer_state_500.json": ("stagnating", None, None),
    "gemma3_trainer_state_250.json": ("healthy", None, None),
    "gspo_3b_math_verl.log": ("healthy", None, None),
    "guicursor_verl_10steps.log": ("unknown", None, None),
    "incident_training_log.json": ("healthy", None, None),
    "llamafactory_orpo_trainer_state.json": ("unknown", None, None),
    "logicrl_wandb_output_9steps.log": ("unknown", None, None),
    "minimind_dpo.log": ("unknown", None, None),
    "minimind_grpo.log": ("stagnating", None, None),
    "minimind_r1_main.log": ("stagnating", None, None),
    "minimind_sft.log": ("unknown", None, None),
    "msswift_sft_logging.jsonl": ("unknown", None, None),
    "nips_w1_rho0.70_seed42.log": ("degrading", None, None),
    "nips_w6_G3_rho3.00_seed42.log": ("stagnating", None, None),
    "openrs_50steps_training.log": ("unknown", None, None),
    "primerl_pr1318_excerpt.log": ("unknown", None, None),
    "primerl_pr2280_excerpt.log": ("unknown", None, None),
    "redteam_stage1.jsonl": ("healthy", None, None),
    "redteam_stage2_dups.jsonl": ("stagnating", None, None),
    "rookworld_console.txt": ("stagnating", None, None),
    "rookworld_history.jsonl": ("stagnating", None, None),
    "searchr1_ppo_debug_console.txt": ("healthy", None, None),
    "selfplay_math_console.log": ("stagnating", None, None),
    "selfplay_math_metrics.csv": ("stagnating", None, None),
    "tada_metrics.jsonl": ("stagnating", None, None),
    "tinker_arithmetic_metrics.jsonl": ("healthy", None, None),
    "tinker_grpo_100_math.log": ("stagnating", None, None),
    "tinker_gsm8k_8B_100step.log": ("stagnating", None, None),
    "tinyzero_trl.tfevents": ("stagnating", None, None),
    "trl_ppo_excerpt_2rows.log": ("unknown", None, None),
    "trl_sft_metrics.jsonl": ("unknown", None, None),
    "unsloth_cn_train_grpo.log": ("stagnating", None, None),
    "varr_mitigated_seed7.jsonl": ("collapsed", 120, None),
    "varr_naive_seed7.jsonl": ("stagnating", None, None),
    "verl_sft_console.log": ("unknown", None, None),
    "vlm_dapo.tfevents": ("stagnating", None, None),
    "wordle_180_27976.tfevents": ("healthy", None, None),
}
here = pytest.mark.skipif(
    not LOGS.is_dir(), reason="no public logs: set LLDLIB_LOGS to their folder"
)


def found_in(name):
    if name.endswith(".tfevents") and not BOARD:
        pytest.skip("tensorboard is not installed")
    return diagnose(LOGS / name)[0]


@here
@pytest.mark.parametrize("name", LABELS)
def test_verdict_beside_its_label(name):
    verdicts, at, pattern = LABELS[name]
    found = found_in(name)
    assert found.judged.verdict in verdicts.split()
    if at is not None:
        assert abs(found.judged.collapsed_at - at) <= 1
    if pattern is not None:
        assert pattern in [p.key for p in found.patterns]
    if verdicts == "healthy":
        assert not found.patterns and not found.warnings
    assert found.judged.sentence.split(":")[0] in as_text(found)


@here
@pytest.mark.parametrize(
    "names",
    [
        [n for n in LABELS if n.startswith("tzy")],
        [n for n in LABELS if n.startswith("wordle_stage2")],
    ],
    ids=["tzy", "wordle"],
)
def test_one_run_in_several_formats_gets_one_verdict(names):
    all_found = [found_in(name) for name in names]
    for what in ("verdict", "collapsed_at"):
        assert len({getattr(found.judged, what) for found in all_found}) == 1
    assert len({tuple(p.key for p in found.patterns) for found in all_found}) == 1


@here
@pytest.mark.parametrize("name", [n for n in LABELS if n != "rookworld_history.jsonl"])
def test_a_file_cut_anywhere_is_read_as_its_prefix(name, tmp_path):
    """All but the file of five runs, of which the last is judged."""
    if not name.endswith((".log", ".csv", ".jsonl")):
        pytest.skip("one document: a cut one is another test")
    data = (LOGS / name).read_bytes()
    whole = diagnose(LOGS / name)[0].run
    for share in (0.3, 0.6, 0.9):
        file = tmp_path / name
        file.write_bytes(data[: int(share * len(data))])
        try:
            cut = diagnose(file)[0]
        except Unreadable:  # the rows begin later
            continue
        if cut.run.format != whole.format:  # so far the training printed no row
            assert cut.judged.verdict == "unknown"
            continue
        rows = len(cut.run.steps)
        assert cut.run.steps[:-1].tolist() == whole.steps[: rows - 1].tolist()
        # the last row may be half-written
        assert judge(cut.run.cut(rows - 1)).verdict == judge(whole.cut(rows - 1)).verdict


@here
@pytest.mark.parametrize("name", [n for n in LABELS if n != "varr_mitigated_seed7.jsonl"])
def test_shuffled_scores_never_collapse(name):
    """All but the run whose loss and evaluations stand still, whatever its scores."""
    run = found_in(name).run
    chance, rows = np.random.default_rng(0), run.scored
    if not len(rows):
        pytest.skip("no reward")
    for _ in range(20):
        run.signals["reward"][rows] = chance.permutation(run.signals["reward"][rows])
        assert judge(run).verdict != "collapsed"


@here
def test_a_page_of_a_real_log_holds_its_figure():
    page = as_html(found_in("tzy_searchr1_wandb_export.csv"))
    assert "data:image/png;base64," in page and "A tool died" in page


def test_recorded_runs_that_live_are_seldom_called_ill():
    """Read off the training reward alone, as the labels of `make_evidence.py` are."""
    lived = [*RUNS.glob("llds-seed*"), *RUNS.glob("grpo_best_rate-seed*")]
    died = [*RUNS.glob("grpo-seed[0-2]")]
    if not lived or not died:
        pytest.skip("the recorded runs are not here")
    ill = [p.name for p in lived if _by_reward(p) in ("degrading", "collapsed")]
    assert len(ill) <= 0.05 * len(lived), ill
    assert all(_by_reward(path) == "collapsed" for path in died)


def _by_reward(path):
    run = diagnose(path)[0].run
    run.heldout[:] = np.nan
    return judge(run).verdict
