"""`check-llds`: our own LLDS keeps every promise, each wrong one breaks the line that names it."""

import functools
import json
from pathlib import Path

import pytest
import torch

from lldlib.adapters.check_llds import assert_llds, check_llds
from lldlib.cli import main
from lldlib.losses import aggregate, llds_gate, llds_penalty, policy_gradient, preserved_mask

GATES = ("action", "response", "token")
GATE_LINES = {"gate-in-falling-response", "gate-in-rising-response", "gate-in-rising-action"}


def broken(function, **how) -> set[str]:
    return {p.name for p in check_llds(function, **how).promises if not p.kept}


def ours(logp, old_logp, advantages, action_mask, gate="action", preserve="nonnegative"):
    """Our scalar, by the paper's divisor."""
    parts = llds_penalty(logp, old_logp, advantages, action_mask, gate=gate, preserve=preserve)
    return aggregate(parts, preserved_mask(advantages, action_mask, preserve), "token-mean")


def official(logp, old_logp, advantages, action_mask, gate="action", preserve="nonnegative"):
    """The same by the official code's divisor."""
    parts = llds_penalty(logp, old_logp, advantages, action_mask, gate=gate, preserve=preserve)
    return aggregate(parts, action_mask, "token-mean")


def plain(logp, anchor, advantages, action_mask):
    """No gate: what several public ones are; `anchor` (B, T), advantages (B,) or (B, T)."""
    rows = advantages[:, None] if advantages.dim() == 1 else advantages
    kept = action_mask & (rows >= 0)
    return torch.where(kept, (anchor.detach() - logp).relu(), 0.0).sum() / kept.sum().clamp(min=1)


@pytest.mark.parametrize("preserve", ["nonnegative", "positive"])
@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("function", [llds_penalty, ours, official])
def test_ours_keeps_every_promise(function, gate, preserve):
    report = check_llds(function, gate=gate, preserve=preserve)
    assert [p.seen for p in report.promises] == [""] * 25
    assert report.gate.split(" ")[0] == gate
    assert_llds(function, gate=gate, preserve=preserve)


def test_the_page_lists_every_promise():
    page = (Path(__file__).parents[1] / "data/scale_out.md").read_text(encoding="utf-8")
    listed = page.partition("### The 25 promises")[2]
    for promise in check_llds(ours).promises:
        assert f"| {promise.name} | {promise.says} |" in listed


def test_the_divisor_is_named():
    named = [check_llds(f).normaliser for f in (llds_penalty, ours, official)]
    assert "per token" in named[0] and "(the paper)" in named[1] and "(the official" in named[2]


def by_open_tokens(logp, old, advantages, mask):
    opened = llds_gate(logp, old, advantages, mask, "action")
    return aggregate(llds_penalty(logp, old, advantages, mask), opened, "token-mean")


def by_charged_rows(logp, old, advantages, mask):
    term = llds_penalty(logp, old, advantages, mask)
    kept = preserved_mask(advantages, mask) & (term > 0).any(1, keepdim=True)
    return aggregate(term, kept, "token-mean")


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (by_open_tokens, "the tokens behind an open gate"),
        (by_charged_rows, "the kept tokens of rows with a charge"),
    ],
)
def test_a_divisor_that_a_shut_gate_changes_is_named(function, name):
    report = check_llds(function)
    (wrong,) = [promise for promise in report.promises if not promise.kept]
    assert (wrong.name, report.normaliser) == ("normaliser", name)


# -- what is wrong in public ones ----------------------------------------------------------------


def test_an_anchor_at_the_reference_is_named():
    def reference(logp, old_logp, advantages, action_mask, ref_logp):
        return ours(logp, ref_logp, advantages, action_mask)

    assert broken(reference) == {"zero-at-first", "old-anchor"}
    told = {p.name: p.seen for p in check_llds(reference).promises}
    assert "below the reference policy" in told["old-anchor"]


@pytest.mark.parametrize("how", ["detached", "one update"])
def test_a_term_that_is_always_zero_is_named(how):
    """old = current.detach(); or a snapshot that is taken anew before each update."""

    def dead(logp, old_logp, advantages, action_mask):
        old = logp.detach() if how == "detached" else logp.detach().clone().exp().log()
        return ours(logp, torch.minimum(old, logp.detach()), advantages, action_mask)

    told = {p.name: p.seen for p in check_llds(dead).promises}
    assert "old = current.detach()" in told["then-not"] and "one update a batch" in told["then-not"]
    assert told["zero-at-first"] == "" and told["rows-positive"].startswith("not seen")
    with pytest.raises(AssertionError, match="BROKEN  then-not"):
        assert_llds(dead)


def test_no_action_gate_is_named():
    assert broken(plain) == {*GATE_LINES, "gate-and-tools", "gate-tie", "bf16"}
    assert check_llds(plain).gate == "token (or no gate)"
    assert broken(plain, gate="token") == set()


@pytest.mark.parametrize("asked", GATES)
@pytest.mark.parametrize("has", GATES)
def test_one_gate_does_not_pose_as_another(has, asked):
    wrong = broken(functools.partial(llds_penalty, gate=has), gate=asked)
    assert (wrong == set()) == (has == asked)
    assert has == asked or wrong & GATE_LINES
    if (has, asked) == ("response", "action"):
        assert wrong == {"gate-in-falling-response", "gate-in-rising-response"}


# -- one fault at a time ---------------------------------------------------------------------------


def flat_runs(logp, old, advantages, mask):
    """Actions numbered over the flattened batch: one that ends a row joins the next row's."""
    wide = [x.reshape(1, -1) for x in (logp, old, mask)]
    spread = advantages[:, None].expand(mask.shape).reshape(1, -1)
    value = llds_penalty(wide[0], wide[1], spread, wide[2])
    return value.reshape(mask.shape)


def tools_counted(logp, old, advantages, mask):
    """Runs of real tokens, whatever wrote them."""
    real = mask.flip(1).cumsum(1).flip(1) > 0
    return torch.where(mask, llds_penalty(logp, old, advantages, real), 0.0)


def two_parts(logp, old, advantages, mask):
    """A gate that knows two actions: before the first tool result, and all after it."""
    result = (mask.cumsum(1) > 0) & ~mask
    later = result.cumsum(1) > 0
    return sum(
        llds_penalty(logp, old, advantages, mask & p, gate="response") for p in (later, ~later)
    )


def in_place(logp, old, advantages, mask):
    value = llds_penalty(logp, old, advantages, mask)
    old.copy_(logp.detach())
    return value


def unmasked(logp, old, advantages, mask):
    return llds_penalty(logp, old, advantages, torch.ones_like(mask))


def weighed(logp, old, advantages, mask):
    return llds_penalty(logp, old, advantages, mask) * advantages.abs()[:, None]


def squared(logp, old, advantages, mask):
    return llds_penalty(logp, old, advantages, mask) ** 2


def both_ways(logp, old, advantages, mask):
    fell = llds_penalty(logp, old, advantages, mask) > 0
    return torch.where(fell.any(1, keepdim=True) & mask, old - logp, 0.0)


def half_sums(logp, old, advantages, mask):
    """The gate's sum kept in the dtype of the log-probs."""
    fall = torch.where(mask, (old - logp).detach(), 0.0)
    exact = llds_penalty(logp, old, advantages, mask)
    if logp.dtype == torch.float32:
        return exact
    total = fall[:, 0].clone()
    for column in range(1, fall.shape[1]):
        total = total + fall[:, column]
    return torch.where(mask & (total > 0)[:, None], (old - logp).relu(), 0.0)


@pytest.mark.parametrize(
    ("function", "wrong"),
    [
        (lambda *x: -llds_penalty(*x), {"sign"}),
        (lambda *x: llds_penalty(*x).detach(), {"gradient"}),
        (unmasked, {"mask-gradient", "mask-value"}),
        (lambda n, o, a, m: llds_penalty(n, o, -a, m), {"rows-positive", "rows-negative"}),
        (lambda *x: llds_penalty(*x, preserve="positive"), {"rows-zero", "tied-batch"}),
        (flat_runs, {"gate-across-rows"}),
        (tools_counted, {"gate-and-tools"}),
        (weighed, {"advantage-size", "rows-zero"}),
        (squared, {"linear"}),
        (both_ways, {"rising-tokens"}),
        (half_sums, {"bf16"}),
        (two_parts, {"gate-in-rising-response"}),
        (in_place, {"pure"}),
        (lambda *x: llds_penalty(*x).sum(), {"normaliser"}),
        (lambda *x: llds_penalty(*x).mean(), {"normaliser", "padding"}),
        (lambda *x: llds_penalty(*x).sum() / len(x[0]), {"normaliser"}),
        (
            lambda n, o, a, m: llds_penalty(n, o, a, m).sum() / (m & (a >= 0)[:, None]).sum(),
            {"nothing-kept"},
        ),
        (lambda n, o, a, m: llds_penalty(n, o + 0.01, a, m), {"zero-at-first"}),
    ],
)
def test_a_fault_breaks_its_line(function, wrong):
    assert wrong <= broken(function)


def test_faults_break_no_other_line():
    """Of the plainest faults each is told alone."""
    alone = {
        "pure": in_place,
        "linear": squared,
        "bf16": half_sums,
        "gate-in-rising-response": two_parts,
        "normaliser": lambda *x: llds_penalty(*x).sum(),
        "sign": lambda *x: -llds_penalty(*x),
    }
    assert {name: broken(f) for name, f in alone.items()} == {name: {name} for name in alone}


# -- how it is called ------------------------------------------------------------------------------


def verl_loss(
    old_log_prob,
    log_prob,
    advantages,
    response_mask,
    loss_agg_mode="token-mean",
    config=None,
    rollout_is_weights=None,
    *,
    old=None,
):
    """A policy loss as verl calls it: the clipped policy gradient plus 0.1 LLDS."""
    base = policy_gradient(log_prob, old_log_prob, advantages, response_mask)
    anchor = log_prob if old == "current" else old_log_prob
    term = llds_penalty(log_prob, anchor.detach(), advantages, response_mask)
    value = 0.1 * aggregate(term, response_mask, loss_agg_mode)
    return aggregate(base, response_mask, loss_agg_mode) + value, {"actor/llds": value.item()}


def test_a_policy_loss_of_verl_is_checked_without_its_base():
    # verl's advantages are 0 on masked tokens, so a row is known only by its own tokens
    assert broken(verl_loss, signature="verl-policy-loss") == set()
    dead = functools.partial(verl_loss, old="current")
    assert "then-not" in broken(dead, signature="verl-policy-loss")


def test_the_command_and_its_exit_status(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "def dead(logp, old, advantages, mask):\n    return (logp.detach() - logp).relu()\n"
        "def odd(x):\n    return x\nvalue = 3\n"
    )
    assert main(["check-llds", "lldlib.losses:llds_penalty", "--gate", "token"]) == 0
    assert "25 of 25 promises kept; gate: token" in capsys.readouterr().out
    assert main(["check-llds", "mine:dead"]) == 1
    assert "BROKEN  then-not" in capsys.readouterr().out
    assert main(["check-llds", "mine.py:dead", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["kept"] is False and len(told["promises"]) == 25
    assert {p["name"]: p["kept"] for p in told["promises"]}["then-not"] is False


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nosuchmodule:f", "cannot import nosuchmodule:f: ModuleNotFoundError"),
        ("lldlib.losses:nosuch", "cannot import lldlib.losses:nosuch: AttributeError"),
        ("nocolon", "want MODULE:FUNCTION"),
        ("lldlib.config:Gate", "cannot be called"),
        ("json:dumps", "cannot be called: TypeError"),
        ("os:getcwd", "cannot be called: TypeError"),
        ("math:pi", "math:pi is no function but float"),
    ],
)
def test_what_cannot_be_called_is_one_line(name, message, capsys):
    assert main(["check-llds", name]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "flags", "message"),
    [
        ("import sys\nsys.exit(0)\n", (), "cannot import mine.py:f: SystemExit: 0"),
        (
            "def f(model):\n    pass\n",
            ("--signature", "trl-trainer"),
            "builds no trainer: TypeError",
        ),
        ("def f():\n    return {}['x']\n", ("--signature", "trl-trainer"), "builds no trainer"),
        (
            "def f():\n    exit(0)\n",
            ("--signature", "trl-trainer"),
            "builds no trainer: SystemExit",
        ),
        ("def f(*given):\n    exit(0)\n", (), "cannot be called: SystemExit: 0"),
    ],
    ids=["exits", "wants a model", "fails", "builder exits", "loss exits"],
)
def test_code_that_stops_is_no_promise_kept(text, flags, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(text)
    assert main(["check-llds", "mine.py:f", *flags]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
