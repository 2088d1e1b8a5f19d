"""The objective: presets, weights of 0, what each knob touches, and the statistics by hand."""

import math
from dataclasses import fields, replace

import pytest
import torch
from torch import Tensor, tensor

from lldlib.config import LossConfig
from lldlib.losses import LossInputs, compute_loss, needs
from lldlib.losses.objective import derived
from lldlib.recipes import METHODS, method

BARE = LossConfig(kl_coef=0.0)
ROWS, WIDTH = 6, 40


def random_inputs(seed: int = 0) -> LossInputs:
    """A small batch that is a little off-policy, with every optional tensor present."""
    g = torch.Generator().manual_seed(seed)

    def noise() -> Tensor:
        return 0.3 * torch.randn(ROWS, WIDTH, generator=g)

    old = -3 * torch.rand(ROWS, WIDTH, generator=g) - 0.5
    mask = torch.rand(ROWS, WIDTH, generator=g) < 0.8
    logp = (old + noise()).requires_grad_()
    return LossInputs(
        logp=logp,
        old_logp=old,
        advantages=tensor([1.0, -1.0, 0.0, -0.4, 2.0, -2.0]),
        action_mask=mask,
        answer_mask=mask & (torch.arange(WIDTH) > 30),
        entropy=-logp * torch.rand(ROWS, WIDTH, generator=g),
        ref_logp=old + noise(),
        proxy_logp=old + 0.1,
        negative_token_weights=torch.rand(ROWS, WIDTH, generator=g),
        mean_valid_searches=1.5,
        generator=g,
        low_logp=tensor(-2.5),
        proxy_kl=torch.rand(ROWS, WIDTH, generator=g),
    )


def step(config: LossConfig, x: LossInputs) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """(loss, its gradient in logp, statistics)."""
    loss, stats = compute_loss(config, x)
    (gradient,) = torch.autograd.grad(loss, x.logp, retain_graph=True)
    return loss.detach(), gradient, stats


# --- presets ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_every_preset_gives_a_finite_loss_and_gradient(name):
    x = random_inputs()
    loss, gradient, stats = step(METHODS[name], x)
    assert torch.isfinite(loss) and torch.isfinite(gradient).all() and gradient.any()
    assert not gradient[~x.action_mask].any()
    assert all(v.dim() == 0 and not v.requires_grad for v in stats.values())


@pytest.mark.parametrize("name", METHODS)
def test_every_preset_but_grpo_changes_the_gradient(name):
    x = random_inputs()
    if name == "clip_cov":  # at its share one token of this batch, which must not be a clipped one
        x = replace(x, old_logp=x.logp.detach())
    same = step(METHODS[name], x)[1].equal(step(METHODS["grpo"], x)[1])
    assert same == (name == "grpo")


WEIGHTS_OFF = {
    "entropy_coef": 0.0,
    "top_entropy": 1.0,
    "clip_cov_share": 0.0,
    "kl_cov_coef": 0.0,
    "nthr": False,
    "old_kl_coef": 0.0,
    "llds_coef": 0.0,
    "lp_reg_coef": 0.0,
    "sapo_coef": 0.0,
    "negative_weight": 1.0,
}
POLICY = {"clip_low": 0.2, "clip_high": 0.2, "ratio_cap": None, "kl_coef": 0.001}
POLICY |= {"ratio_limit": None, "surrogate": "ppo"}
TOKEN_LEVEL = {"ratio_level": "token", "aggregation": "token-mean"}


@pytest.mark.parametrize("name", METHODS)
def test_a_term_at_weight_zero_changes_no_bit(name):
    reference = step(METHODS["grpo"], random_inputs())
    without = method(name, **WEIGHTS_OFF, **POLICY, **TOKEN_LEVEL)
    loss, gradient, stats = step(without, random_inputs())
    assert loss.equal(reference[0]) and gradient.equal(reference[1])
    assert stats.keys() == reference[2].keys()


def test_the_variants_do_what_the_official_codes_do():
    """Search-R1's and LLDS's have an entropy bonus and limit the ratio, Lp-Reg's neither."""
    extra = {
        name: vars(METHODS[f"{name}_code"]).items() - vars(METHODS[name]).items()
        for name in ("grpo", "llds", "lp_reg")
    }
    code = {("entropy_coef", 0.001), ("ratio_limit", 100.0)}
    assert extra["grpo"] == code
    assert extra["llds"] == code | {("llds_normalizer", "all")}
    assert extra["lp_reg"] == {
        ("lp_reg_selection", "code"),
        ("clip_low", 1.0),
        ("clip_high", 9.0),
        ("ratio_cap", None),
    }


def test_unknown_method_names_the_known_ones():
    with pytest.raises(ValueError, match=r"unknown method 'ppo': use one of grpo, .*old_kl"):
        method("ppo")


def test_overrides_leave_the_preset_alone():
    assert method("llds", llds_coef=0.5).llds_coef == 0.5
    assert METHODS["llds"].llds_coef == 0.2


# --- inputs -------------------------------------------------------------------------------------


def test_needs():
    assert needs(BARE) == frozenset()
    assert needs(METHODS["grpo"]) == {"ref_logp"}
    assert needs(METHODS["lp_reg"]) == {"proxy_logp", "low_logp"}
    assert needs(METHODS["lp_reg_code"]) == {"proxy_logp"}
    assert needs(METHODS["nthr"]) == {"ref_logp", "negative_token_weights"}
    assert needs(replace(BARE, entropy_coef=0.1)) == {"entropy"}
    assert needs(replace(BARE, top_entropy=0.2)) == {"entropy"}
    assert needs(replace(BARE, clip_cov_share=0.1)) == {"generator"}
    assert needs(replace(BARE, llds_coef=0.1)) == frozenset()
    assert needs(METHODS["llds_ma"]) == {"ref_logp", "mean_valid_searches"}


@pytest.mark.parametrize("name", METHODS)
def test_what_a_config_does_not_need_is_not_read(name):
    x, wanted = random_inputs(), needs(METHODS[name])
    optional = {f.name for f in fields(x) if f.default is None}
    lean = replace(x, **dict.fromkeys(optional - wanted))
    state = x.generator.get_state()
    full = step(METHODS[name], x)
    x.generator.set_state(state)
    assert step(METHODS[name], lean)[1].equal(full[1])


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("grpo", "ref_logp"),
        ("top_entropy", "entropy"),
        ("lp_reg", "proxy_logp"),
        ("lp_reg", "low_logp"),
        ("nthr", "negative_token_weights"),
        ("clip_cov", "generator"),
        ("llds_ma", "mean_valid_searches"),
    ],
)
def test_a_missing_input_is_named(name, field):
    with pytest.raises(ValueError, match=f"reads {field}: pass it"):
        compute_loss(METHODS[name], replace(random_inputs(), **{field: None}))


# --- what each knob touches ---------------------------------------------------------------------


def hand_inputs(logp: list[list[float]], **optional) -> LossInputs:
    """Two rows, A = 1 and -1, all old log-probs -1; the last token is not an action."""
    rows = tensor(logp)
    mask = torch.ones(rows.shape, dtype=torch.bool)
    mask[:, -1] = False
    return LossInputs(
        logp=rows.requires_grad_(),
        old_logp=torch.full(rows.shape, -1.0),
        advantages=tensor([1.0, -1.0]),
        action_mask=mask,
        answer_mask=torch.zeros_like(mask),
        **optional,
    )


ON_POLICY = [[-1.0, -1.0, -1.0], [-1.0, -1.0, -1.0]]
FALLEN = [[-1.4, -0.9, 5.0], [-1.4, -0.9, 5.0]]  # falls 0.4 and -0.1, in both rows


def test_policy_gradient_on_policy():
    loss, gradient, stats = step(BARE, hand_inputs(ON_POLICY))
    # ratios 1: mean of -1, -1, 1, 1; gradient -A / 4 tokens
    assert loss == 0 and stats["policy/clip_share"] == 0 and stats["policy/ratio_max"] == 1
    assert gradient.equal(tensor([[-0.25, -0.25, 0.0], [0.25, 0.25, 0.0]]))


def test_aggregation_of_the_policy_term():
    gradient = step(replace(BARE, aggregation="seq-mean-token-sum"), hand_inputs(ON_POLICY))[1]
    assert gradient.equal(tensor([[-0.5, -0.5, 0.0], [0.5, 0.5, 0.0]]))  # -A / 2 rows


def test_sequence_ratio_of_the_policy_term():
    # both rows: s = exp((-0.4 + 0.1) / 2) = 0.860708; gradient -A s / 4 tokens
    _, gradient, stats = step(replace(BARE, ratio_level="sequence"), hand_inputs(FALLEN))
    expected = tensor([[-0.215177, -0.215177, 0.0], [0.215177, 0.215177, 0.0]])
    torch.testing.assert_close(gradient, expected, atol=1e-5, rtol=0)
    assert stats["policy/ratio_max"].item() == pytest.approx(0.860708)


@pytest.mark.parametrize(("weight", "expected"), [(0.0, 0.0), (0.5, 0.125)])
def test_negative_weight_scales_only_negative_rows(weight, expected):
    config = replace(BARE, negative_weight=weight)
    gradient = step(config, hand_inputs(ON_POLICY))[1]
    assert gradient.equal(tensor([[-0.25, -0.25, 0.0], [expected, expected, 0.0]]))


def test_nthr_scales_only_negative_tokens():
    x = hand_inputs(ON_POLICY, negative_token_weights=tensor([[0.5, 1.0, 1.0]] * 2))
    gradient = step(replace(BARE, nthr=True), x)[1]
    assert gradient.equal(tensor([[-0.25, -0.25, 0.0], [0.125, 0.25, 0.0]]))


def test_top_entropy_silences_tokens_but_keeps_the_divisor():
    x = hand_inputs(ON_POLICY, entropy=tensor([[0.1, 0.9, 3.0], [0.2, 0.8, 3.0]]))
    gradient = step(replace(BARE, top_entropy=0.5), x)[1]
    assert gradient.equal(tensor([[0.0, -0.25, 0.0], [0.0, 0.25, 0.0]]))


def test_clip_cov_silences_tokens_but_keeps_the_divisor():
    # mean logp -2, mean A 0: covariances 1.5, -1.5, 0, 0 (row 1: logp -2), so one candidate
    x = hand_inputs([[-0.5, -3.5, 0.0], [-2.0, -2.0, 0.0]], generator=torch.Generator())
    x = replace(x, old_logp=x.logp.detach().clone())
    gradient = step(replace(BARE, clip_cov_share=0.25), x)[1]
    assert gradient.equal(tensor([[0.0, -0.25, 0.0], [0.25, 0.25, 0.0]]))


@pytest.mark.parametrize(("normalizer", "divisor"), [("preserved", 2), ("all", 4)])
def test_llds_value_gradient_and_statistics(normalizer, divisor):
    base = step(BARE, hand_inputs(FALLEN))
    config = replace(BARE, llds_coef=0.2, llds_normalizer=normalizer)
    loss, gradient, stats = step(config, hand_inputs(FALLEN))
    # only row 0 is preserved; its action fell by 0.3 in sum, so 0.4 counts and the gate is open
    assert stats["llds/value"].item() == pytest.approx(0.4 / divisor)
    assert stats["llds/open_gate_share"] == 1
    assert (loss - base[0]).item() == pytest.approx(0.2 * 0.4 / divisor)
    expected = tensor([[-0.2 / divisor, 0.0, 0.0], [0.0, 0.0, 0.0]])
    torch.testing.assert_close(gradient - base[1], expected)


def test_llds_adds_nothing_to_the_first_update():
    plain, protected = (
        step(c, hand_inputs(ON_POLICY)) for c in (BARE, method("llds", kl_coef=0.0))
    )
    assert protected[0].equal(plain[0]) and protected[1].equal(plain[1])
    assert protected[2]["llds/value"] == 0 and protected[2]["llds/open_gate_share"] == 0


@pytest.mark.parametrize(
    ("schedule", "searches", "weight"),
    [("none", 0.0, 1.0), ("paper", 1.0, 0.5), ("code", 1.0, 0.0), ("code", 1.5, 0.5)],
)
def test_llds_ma_weighs_the_answer(schedule, searches, weight):
    x = hand_inputs(FALLEN, mean_valid_searches=searches)
    x = replace(x, answer_mask=tensor([[True, False, False]] * 2))
    stats = step(replace(BARE, llds_coef=0.2, llds_answer=schedule), x)[2]
    assert stats["llds/value"].item() == pytest.approx(weight * 0.4 / 2)


def test_llds_protects_zero_advantage_rows_and_ignores_negative_weight():
    x = replace(hand_inputs(FALLEN), advantages=tensor([0.0, -1.0]))
    stats = step(replace(BARE, llds_coef=0.2, negative_weight=0.0), x)[2]
    assert stats["llds/value"].item() == pytest.approx(0.2)


def test_lp_reg_lifts_the_improbable_negative_token():
    logp = [[-3.0, -1.0, -9.0], [-2.0, -0.5, -9.0]]
    x = hand_inputs(logp, proxy_logp=tensor([[0.0, 0.0, 0.0], [-1.3068528, 0.0, 0.0]]))
    x = replace(x, old_logp=x.logp.detach().clone(), low_logp=tensor(-1.5))
    config = replace(BARE, lp_reg_coef=1.0, lp_reg_quantile=0.5)
    base, (loss, gradient, stats) = step(BARE, x), step(config, x)
    # below -1.5: -3 (A > 0) and -2, and -9 off the mask; d = ln 2: 2 - ln 2 - 1
    assert stats["lp_reg/protected_share"] == 0.25
    assert stats["lp_reg/value"].item() == pytest.approx(0.306853 / 4, abs=1e-6)
    assert (loss - base[0]).item() == pytest.approx(0.306853 / 4, abs=1e-6)
    rows = replace(BARE, aggregation="seq-mean-token-sum")
    by_rows = step(replace(rows, lp_reg_coef=1.0, lp_reg_quantile=0.5), x)[0] - step(rows, x)[0]
    assert by_rows.item() == pytest.approx(0.306853 / 2, abs=1e-6)
    expected = tensor([[0.0, 0.0, 0.0], [-0.25, 0.0, 0.0]])  # (1 - 2) / 4 tokens
    torch.testing.assert_close(gradient - base[1], expected)


def test_the_exact_kl_takes_the_place_of_the_sampled_one():
    logp = [[-3.0, -1.0, -9.0], [-2.0, -0.5, -9.0]]
    exact = torch.full((2, 3), 12.0, requires_grad=True)  # over 10: nothing is cut off
    x = hand_inputs(logp, proxy_logp=torch.zeros(2, 3), low_logp=tensor(-1.5), proxy_kl=exact)
    config = replace(BARE, lp_reg_coef=1.0, lp_reg_kl="exact")
    assert needs(config) == {"proxy_logp", "low_logp", "proxy_kl"}
    loss, stats = compute_loss(config, x)
    assert stats["lp_reg/value"] == 3.0  # one token of four
    (gradient,) = torch.autograd.grad(loss, exact)
    assert gradient.equal(tensor([[0.0, 0.0, 0.0], [0.25, 0.0, 0.0]]))


def test_what_is_logged_is_a_token_mean_however_the_loss_is_aggregated():
    x = hand_inputs([[-3.0, -1.0, -9.0], [-2.0, -0.5, -9.0]], low_logp=tensor(-1.5),
                    proxy_logp=torch.zeros(2, 3), ref_logp=torch.zeros(2, 3))  # fmt: skip
    config = replace(method("lp_reg"), kl_coef=1.0, kl_estimator="k1")
    means = step(config, x)[2]
    sums = step(replace(config, aggregation="seq-mean-token-sum"), x)[2]
    assert means["kl/reference"].item() == pytest.approx((-3 - 1 - 2 - 0.5) / 4)
    for key in ("kl/reference", "lp_reg/value"):
        assert sums[key].equal(means[key])


def test_lp_regs_saturation_is_its_value_per_protected_token():
    means = {"lp_reg/value": 0.04, "lp_reg/protected_share": 0.005}
    told = derived(METHODS["lp_reg"], means)
    assert told == {"lp_reg/saturation": pytest.approx(8.0)}
    none = derived(METHODS["lp_reg"], dict.fromkeys(means, 0.0))
    assert math.isnan(none["lp_reg/saturation"])
    assert derived(METHODS["llds"], {}) == {}
    assert derived(method("lp_reg", lp_reg_kl="exact"), means) == {}


def test_kl_entropy_and_kl_cov_are_added_with_their_weights():
    x = hand_inputs(FALLEN, ref_logp=torch.full((2, 3), -1.0), entropy=torch.full((2, 3), 2.0))
    base = step(BARE, x)[0]
    # k1 to the old and to the reference policy (both -1): mean of -0.4, 0.1, -0.4, 0.1
    for knob, key in (("kl_coef", "kl/reference"), ("old_kl_coef", "kl/old")):
        loss, _, stats = step(replace(BARE, **{knob: 2.0}, kl_estimator="k1"), x)
        assert stats[key].item() == pytest.approx(-0.15)
        assert (loss - base).item() == pytest.approx(2 * -0.15)
    # on preserved rows alone, a mean over their two tokens: row 0 has A = 1
    kept = replace(BARE, old_kl_coef=2.0, old_kl_rows="preserved", kl_estimator="k1")
    moved = hand_inputs([[-0.4, -1.2, 9.0], [-0.5, -1.5, 9.0]])
    assert step(kept, moved)[2]["kl/old"].item() == pytest.approx((0.6 - 0.2) / 2)
    assert (step(replace(BARE, entropy_coef=0.5), x)[0] - base).item() == pytest.approx(-1.0)
    # covariances 0.25 (logp -0.9, A = 1) and (logp -1.4, A = -1), |log-ratios| 0.1 and 0.4
    for share, total in ((0.5, 0.5), (1.0, 1.0)):
        config = replace(BARE, kl_cov_coef=3.0, kl_cov_share=share)
        assert (step(config, x)[0] - base).item() == pytest.approx(3 * total / 4)


def test_policy_statistics_by_hand():
    # ratios exp(0.5) = 1.6487 and exp(-0.5) = 0.6065: clipped where A = 1 rises and A = -1 falls
    x = hand_inputs([[-0.5, -1.5, 9.0], [-0.5, -1.5, 9.0]])
    stats = step(BARE, x)[2]
    assert stats["policy/clip_share"] == 0.5
    assert stats["policy/ratio_max"].item() == pytest.approx(1.648721)
    assert step(replace(BARE, clip_high=0.7), x)[2]["policy/clip_share"] == 0.25


@pytest.mark.parametrize("name", METHODS)
def test_a_minibatch_without_action_tokens_is_harmless(name):
    x = random_inputs()
    empty = torch.zeros_like(x.action_mask)
    loss, gradient, stats = step(METHODS[name], replace(x, action_mask=empty, answer_mask=empty))
    assert loss == 0 and not gradient.any()
    assert all(torch.isfinite(v) for v in stats.values())
