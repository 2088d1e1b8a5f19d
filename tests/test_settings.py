"""Every field of every config refuses what means nothing, in one line that names the field."""

import copy
import dataclasses
import typing

import pytest

from lldlib import config as settings
from lldlib.config import (
    DataConfig,
    ExamConfig,
    LoadConfig,
    LossConfig,
    RolloutConfig,
    SftConfig,
    TrainConfig,
    WarmstartConfig,
    check,
)
from lldlib.recipes import METHODS, train_config

CONFIGS = (TrainConfig(), WarmstartConfig(), SftConfig(), ExamConfig())
ZERO_MEANS = {  # something, in these fields: off, never, all, from the start, or a plain number
    *("seed", "warmup_batches", "eval_every", "probe_every", "fresh_every", "checkpoint_every"),
    *("rollouts_logged", "questions_every", "llds_target", "micro_rows", "load.lora_rank"),
    "move_limit",
    "data.misses",
    *("rollout.max_searches", "rollout.passage_tokens", "rollout.at_once", "loss.clip_low"),
    *("loss.clip_high", "loss.negative_weight", "loss.clip_cov_share", "loss.kl_cov_coef"),
    *("loss.entropy_coef", "loss.kl_coef", "loss.old_kl_coef", "loss.llds_coef"),
    *("loss.lp_reg_coef", "loss.lp_reg_threshold", "loss.sapo_coef", "rollout.sampler_noise"),
    *("plain_steps", "warmup"),
    *("demonstrations.corrupt", "demonstrations.stop_early", "demonstrations.give_up"),
    *("demonstrations.filler_words", "demonstrations.filler_words_failing"),
    *("demonstrations.max_searches", "passage_tokens", "max_searches"),
}
ZERO_HERE = {("WarmstartConfig", "steps"), ("WarmstartConfig", "rows")}  # untrained; all
NUMBERS = (int, float)


def with_field(config, name: str, value):
    """A copy with any value at all, past the shape checks of the tests."""
    new = copy.copy(config)
    object.__setattr__(new, name, value)
    return new


def leaves(config, prefix=""):
    """Every field of a config and of the configs in it: (path, type, what sets it)."""
    hints = typing.get_type_hints(type(config))
    for field in dataclasses.fields(config):
        value, path = getattr(config, field.name), prefix + field.name

        def put(new, name=field.name):
            return with_field(config, name, new)

        if dataclasses.is_dataclass(value):
            for inner, hint, build in leaves(value, f"{path}."):
                yield inner, hint, lambda new, build=build, put=put: put(build(new))
        else:
            yield path, hints[field.name], put


def kinds(hint) -> tuple:
    """The type, or the types of which a value may have one."""
    union = typing.get_origin(hint) in (typing.Union, type(int | None))
    return typing.get_args(hint) if union else (hint,)


FIELDS = [
    pytest.param(type(config).__name__, path, hint, put, id=f"{type(config).__name__}.{path}")
    for config in CONFIGS
    for path, hint, put in leaves(config)
]


def refused(config, path: str) -> bool:
    """Whether the config is refused, and if so in one line that begins with the field's name."""
    try:
        config.check()
    except ValueError as error:
        assert str(error).startswith(f"{path} is ") and ": use " in str(error), str(error)
        assert "\n" not in str(error)
        return True
    return False


@pytest.mark.parametrize(("owner", "path", "hint", "put"), FIELDS)
def test_a_field_at_its_edges(owner, path, hint, put):
    if any(kind in NUMBERS for kind in kinds(hint)):
        for wrong in (float("inf"), float("-inf"), float("nan"), -1, -0.5, "1", True):
            assert refused(put(wrong), path), wrong
        zero = path in ZERO_MEANS or (owner, path) in ZERO_HERE
        if path == "llds_target":  # it wants a lambda to start from
            return
        assert refused(put(0), path) is not zero
        if int in kinds(hint):
            assert refused(put(1.5), path)
    elif typing.get_origin(hint) is tuple and float in typing.get_args(hint):
        for wrong in ((), (-1.0, 0.5), (float("nan"), 0.5), (float("inf"), 0.5), (0.1,) * 9):
            assert refused(put(wrong), path), wrong
    elif any(typing.get_origin(kind) is typing.Literal for kind in kinds(hint)):
        assert refused(put("nosuch"), path)


HUGE = 10**400  # more than any float holds


@pytest.mark.parametrize(("owner", "path", "hint", "put"), FIELDS)
def test_a_field_of_another_kind_or_huge(owner, path, hint, put):
    """What no field of that type can be; a text of many lines is shown as one."""
    options = kinds(hint)
    wrong = [HUGE, -HUGE, [], {}, float("nan"), float("inf"), -1, b"x", object]
    if str not in options:
        wrong += ["no\nsuch " * 1000, ""]
    if type(None) not in options:
        wrong.append(None)
    if bool not in options:
        wrong.append(True)
    if typing.get_origin(hint) is tuple:
        inner = typing.get_args(hint)[0]
        wrong += [(None,), ([],), (HUGE,)] + ([("x", 1)] if inner is str else [("x",), (True,)])
    for value in wrong:
        assert refused(put(value), path), value


def test_a_seed_that_no_generator_takes_is_refused():
    for config in (TrainConfig(), WarmstartConfig(), SftConfig()):
        assert not refused(with_field(config, "seed", 10**8 - 1), "seed")
        assert refused(with_field(config, "seed", 10**8), "seed")


def test_the_fields_above_are_all_that_a_number_can_be_in():
    seen = {
        path for _, path, hint, _ in (p.values for p in FIELDS) if set(kinds(hint)) & {*NUMBERS}
    }
    assert seen >= ZERO_MEANS and len(seen) > 50


@pytest.mark.parametrize("policy", ["half_taught", "tiny", "sparks", "some/model"])
def test_every_recipe_and_default_is_within_its_ranges(policy):
    for method in METHODS:
        train_config(method, 0, policy=policy).check()
    for config in (*CONFIGS, LoadConfig(), DataConfig(), RolloutConfig(), LossConfig()):
        check(config)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (TrainConfig(lr=0.0), "lr is 0.0: use a finite number over 0"),
        (TrainConfig(steps=-3), "steps is -3: use a whole number of 1 or more"),
        (TrainConfig(betas=(0.9, 1.0)), "betas is (0.9, 1.0): use for each a number in [0, 1)"),
        (TrainConfig(llds_target=-1.0), "llds_target is -1.0: use a finite number of 0 or more or"),
        (TrainConfig(llds_target=0.1), "llds_target is 0.1 with llds_coef 0: give a lambda"),
        (TrainConfig(data=DataConfig(hop_weights=(0.0,))), "data.hop_weights are all 0"),
        (TrainConfig(load=LoadConfig(quantize="nf4")), "load.quantize trains adapters alone"),
        (TrainConfig(data=DataConfig(corpus="c")), "data.corpus belongs to questions from files"),
        (
            TrainConfig(data=DataConfig(retriever="none", heldout=("h",))),
            "data.heldout belongs to questions from files",
        ),
        (TrainConfig(data=DataConfig(misses=0.1)), "data.misses belongs to the world 'shuffled'"),
        (
            TrainConfig(data=DataConfig(train=("t",), exam_half="test")),
            "data.exam_half belongs to the world 'shuffled', and is not read with questions from",
        ),
        (WarmstartConfig(width=10), "width is 10: use a multiple of the 4 attention heads"),
        (
            with_field(LossConfig(), "llds_gate", "row"),
            "llds_gate is row: use one of action, ",
        ),
    ],
)
def test_what_is_said(config, message):
    with pytest.raises(ValueError) as error:
        config.check() if hasattr(config, "check") else check(config)
    assert str(error.value).startswith(message)


def test_a_plain_number_has_to_be_finite():
    """A new term's setting without a range, as a contributor may write it."""
    plain = dataclasses.make_dataclass("Plain", [("nll_coef", float, 0.0)], frozen=True)
    check(plain(-2.0))
    with pytest.raises(ValueError, match="nll_coef is inf: use a finite number"):
        settings.check(plain(float("inf")))
