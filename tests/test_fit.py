"""The estimate of memory: parameter counts as published, peaks as measured, the verdict."""

import dataclasses
import warnings

import pytest
import torch
from bench.lean_worker import peak_bytes
from helpers import tiny_policy
from transformers import AutoModelForCausalLM

from lldlib.cli import main
from lldlib.policy.head import head_scores
from lldlib.policy.load import (
    LoraSettings,
    Policy,
    load_policy,
    save_policy,
    tiny_model,
    with_adapters,
)
from lldlib.policy.memory import (
    NF4_BYTES,
    Fit,
    Live,
    Shape,
    configuration,
    estimate,
    known_models,
)

PLAIN = {"quantize": None, "lora": None, "dtype": "float32", "reference": True}
SHAPE = Shape(update_rows=3, rollout_rows=10, tokens=50)


@pytest.mark.parametrize("name", sorted(known_models()))
def test_known_sizes_give_the_published_number_of_parameters(name):
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(configuration(name))
    assert sum(p.numel() for p in model.parameters()) == known_models()[name]["parameters"]


def test_an_instruct_model_has_the_sizes_of_its_base():
    one, other = (configuration(f"Qwen/Qwen2.5-3B{ending}") for ending in ("", "-Instruct"))
    assert one.to_dict() == other.to_dict()


def test_an_unknown_policy_is_one_line(tmp_path):
    with pytest.raises(ValueError, match=r"unknown policy '.*nothing': use one of") as error:
        configuration(str(tmp_path / "nothing"))
    assert "\n" not in str(error.value)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    """A searcher of four layers, wide enough that small things do not count."""
    tokenizer = tiny_policy().tokenizer
    model = tiny_model(len(tokenizer), width=64, layers=4, heads=2, seed=0)
    path = tmp_path_factory.mktemp("wide")
    save_policy(Policy(model.eval(), tokenizer), path)
    return str(path)


def measured(path: str, lora: LoraSettings | None, checkpointing: bool) -> int:
    """Peak of one real update, gradients included."""
    policy = load_policy(path, lora=lora, gradient_checkpointing=checkpointing)
    model = policy.model.train()
    tokens = torch.zeros(SHAPE.update_rows, SHAPE.tokens, dtype=torch.long)

    def update():
        hidden = model.get_decoder()(input_ids=tokens, use_cache=False).last_hidden_state
        states = hidden[:, :-1].reshape(-1, hidden.shape[-1])
        head = model.get_output_embeddings()
        head_scores(head, states, tokens[:, 1:].reshape(-1), 1.0).logp.sum().backward()

    return peak_bytes(update)


@pytest.mark.parametrize("lora", [None, LoraSettings(4, 8)])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_peak_of_an_update_is_the_measured_one(folder, lora, checkpointing):
    settings = PLAIN | {"lora": lora, "gradient_checkpointing": checkpointing}
    expected = sum(estimate(folder, 16, SHAPE, **settings).update.values())
    assert expected == pytest.approx(measured(folder, lora, checkpointing), rel=0.15)


def test_the_parts_that_are_counted(folder):
    settings = PLAIN | {"gradient_checkpointing": False}
    count = sum(p.numel() for p in load_policy(folder).model.parameters())
    full = estimate(folder, 16, SHAPE, **settings)
    assert full.always["weights"] == full.always["reference"] == 4 * count
    assert full.always["optimiser"] == 8 * count and full.update["gradients"] == 4 * count
    # keys and values, 4 layers, hidden size 64 in all heads, 50 tokens, 10 rows, 4 bytes
    words = configuration(folder).vocab_size
    assert full.rollout == {
        "key-value cache": 2 * 4 * 64 * 50 * 10 * 4,
        # the MLP's 192 numbers a token, which are more than the scores of two heads
        "texts being fed": 192 * 10 * 50 * 4 * 4,
        # logits, at the temperature, probabilities; their sums in float64: the first two are one
        "next tokens": 10 * words * (4 + 4 + 4 + 8),
        "unpacked weight": 0,
    }
    half = estimate(folder, 16, SHAPE, **settings | {"dtype": "bfloat16"})
    assert half.always["weights"] == half.update["gradients"] == 2 * count
    assert half.always["master weights"] == 4 * count and half.always["optimiser"] == 8 * count
    alone = estimate(folder, 16, SHAPE, **settings | {"reference": False})
    assert "reference" not in alone.always
    # what the optimiser moves is copied in the format that it moves: float32, here
    for one in (settings, settings | {"dtype": "bfloat16"}):
        limited = estimate(folder, 16, SHAPE, **one, move_limit=True)
        assert limited.update["weights before the update"] == 4 * count
        assert limited.total == estimate(folder, 16, SHAPE, **one).total + 4 * count

    rank = 4
    qlora = settings | {"quantize": "nf4", "lora": LoraSettings(rank, 8), "dtype": "bfloat16"}
    small = estimate(folder, 16, SHAPE, **qlora)
    # q, k, v, o are 64 x 64, gate and up 64 x 192, down 192 x 64
    packed = 4 * (4 * 64 * 64 + 3 * 64 * 192)
    adapters = 4 * rank * (4 * (64 + 64) + 3 * (64 + 192))
    assert small.always["weights"] == pytest.approx(packed * NF4_BYTES + 2 * (count - packed))
    assert small.always["adapters"] == 4 * adapters and "reference" not in small.always
    assert small.update["unpacked weight"] == small.rollout["unpacked weight"] == 2 * 64 * 192
    with pytest.raises(ValueError, match="adapters"):
        estimate(folder, 16, SHAPE, **qlora | {"lora": None})


def test_checkpointing_and_shorter_texts_need_less(folder):
    settings = PLAIN | {"gradient_checkpointing": False}
    full = estimate(folder, 16, SHAPE, **settings)
    lean = estimate(folder, 16, SHAPE, **settings | {"gradient_checkpointing": True})
    short = estimate(folder, 16, dataclasses.replace(SHAPE, tokens=20), **settings)
    assert lean.update["activations"] < 0.6 * full.update["activations"]
    assert short.total < full.total


@pytest.mark.parametrize(
    ("name", "gpu", "rows", "load"),
    [
        ("Qwen/Qwen2.5-7B", 16, 20, {"quantize": "nf4", "lora": LoraSettings(16, 32)}),
        ("Qwen/Qwen2.5-3B", 80, 40, {"quantize": None, "lora": None}),
    ],
)
def test_what_is_meant_to_fit(name, gpu, rows, load):
    """40 episodes of 4,096 tokens, on 16 GB generated 20 at a time; trained one by one."""
    settings = load | {"dtype": "bfloat16", "gradient_checkpointing": True, "reference": True}
    assert estimate(name, gpu, Shape(1, rows, 4096), **settings).fits


def test_the_verdict():
    parts = {"always": {"weights": 6e9}, "update": {"a": 3e9, "b": 1e9}, "rollout": {"c": 5e9}}
    fit = Fit(**parts, available=11e9)
    assert fit.total == 11e9 and fit.fits and "fits in 11.0 GB" in fit.table()
    tight = dataclasses.replace(fit, available=10.9e9)
    assert not tight.fits and "does NOT fit in 10.9 GB" in tight.table()
    assert "weights" in fit.table() and "6.00 GB  always" in fit.table()


def test_the_command_says_where_hours_come_from(capsys):
    for gpu, status in (("16", 0), ("0.5", 1)):
        assert main(["fit", "--policy", "tiny", "--gpu", gpu, "--tokens", "64"]) == status
        first = capsys.readouterr().out.splitlines()[0]
        assert first.startswith("memory alone; hours: `lldlib train ... --dry-run`")


def test_adapters_are_made_without_a_warning():
    model = tiny_model(10, width=8, layers=1, heads=2, seed=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert with_adapters(model, LoraSettings(1, 1)).peft_config


def test_live_bytes_are_counted_once_and_given_back():
    with Live() as live:
        a = torch.zeros(100)
        view = a[10:]
        b = a + 1
        del a
        b.add_(1)
        assert live.now == 800  # the view keeps the first one
        del view
        assert live.now == 400
        c = torch.zeros(200, dtype=torch.int8)
        assert (live.now, live.peak) == (600, 800)
        del b, c
    assert live.now == 0
