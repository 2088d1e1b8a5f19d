"""Tokenizers and models by name: round trips, tags as single tokens, errors of one line."""

import json

import pytest
import torch
from helpers import (
    character_policy,
    character_tokenizer,
    information,
    tiny_policy,
    world,
    world_questions,
)
from transformers import AutoModelForCausalLM, FalconConfig, GPT2Config, OPTConfig

from lldlib.config import WarmstartConfig
from lldlib.policy.load import (
    BUILT_IN,
    TAGS,
    LoraSettings,
    Policy,
    load_policy,
    save_policy,
    tiny_model,
    word_tokenizer,
)
from lldlib.train.supervised import make_tiny, warm_start
from lldlib.world.protocol import SEARCH_R1, TINY, TINY_WORDS, search_protocol


def test_word_tokenizer_round_trip():
    tokenizer = word_tokenizer(["Lima", "is", ".", ".pe", "+51"])
    text = "<think> Lima is .pe . </think> <search> +51 </search>"
    ids = tokenizer.encode(text)
    assert len(ids) == len(text.split())
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode(tokenizer.encode("Lima  is\n\nQuito")) == "Lima is <unk>"


@pytest.mark.parametrize("tag", TAGS)
def test_a_tag_is_one_token_wherever_it_stands(tag):
    tokenizer = word_tokenizer(["a", "b"])
    a, b, one = (tokenizer.convert_tokens_to_ids(t) for t in ("a", "b", tag))
    for text in (f"a{tag}b", f"a {tag} b", f"a\n\n{tag}\nb"):
        assert tokenizer.encode(text) == [a, one, b]
    assert tokenizer.encode(tag + tag) == [one, one]


def test_the_tags_are_eight():
    assert len(TAGS) == 8 and {"<think>", "</search>", "</information>", "<answer>"} <= set(TAGS)


def test_a_repeated_word_leaves_no_hole_in_the_vocabulary():
    tokenizer = word_tokenizer(["a", "a", "<search>", "<eos>", "b"])
    assert sorted(tokenizer.get_vocab().values()) == list(range(len(tokenizer)))


def test_pad_and_eos_are_where_the_model_expects_them():
    policy = tiny_policy()
    assert policy.tokenizer.eos_token_id == policy.model.config.eos_token_id
    assert policy.tokenizer.pad_token_id == policy.model.config.pad_token_id
    assert policy.model.config.vocab_size == len(policy.tokenizer)


def test_the_tiny_vocabulary_covers_the_world_and_the_protocol():
    policy = make_tiny(world(), WarmstartConfig(width=16, layers=1, heads=2))
    texts = [TINY.prompt(question.text) for question in world().questions("heldout")[::50]]
    texts += [information(*(p.text for p in world().passages("all"))), TINY.invalid_message]
    unknown = policy.tokenizer.unk_token_id
    for text in texts:
        assert unknown not in policy.tokenizer.encode(text), text


def test_the_seed_alone_sets_the_weights():
    weights = [
        tiny_model(30, width=16, layers=1, heads=2, seed=seed).get_input_embeddings().weight
        for seed in (3, 3, 4)
    ]
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])


def test_a_saved_policy_gives_the_same_tokens_and_logits(tmp_path):
    policy = tiny_policy()
    save_policy(policy, tmp_path / "p")
    again = load_policy(str(tmp_path / "p"))
    text = TINY.prompt(world_questions(1)[0].text) + "<think> so </think><answer>"
    ids = policy.tokenizer.encode(text)
    assert again.tokenizer.encode(text) == ids
    assert again.tokenizer.decode(ids) == policy.tokenizer.decode(ids)
    assert again.tokenizer.eos_token_id == policy.tokenizer.eos_token_id
    assert search_protocol(again.tokenizer) is TINY and not again.model.training
    with torch.no_grad():
        logits = [p.model(input_ids=torch.tensor([ids])).logits for p in (policy, again)]
    assert torch.equal(*logits)


def test_a_vocabulary_without_the_tags_gets_the_long_instruction(tmp_path):
    # It has an unknown token: the id of "</search>" is a valid one, and yet no tag.
    save_policy(character_policy(), tmp_path / "c")
    tokenizer = load_policy(str(tmp_path / "c")).tokenizer
    assert search_protocol(tokenizer) is SEARCH_R1
    # somebody may have added the tags to a large vocabulary
    tokenizer.add_tokens([*(f"<{n}>" for n in range(TINY_WORDS)), "</search>"])
    assert search_protocol(tokenizer) is SEARCH_R1


def one_line(error) -> str:
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_missing_built_in_searcher_says_where_it_comes_from(tmp_path, monkeypatch):
    monkeypatch.setattr("lldlib.policy.load.data_dir", lambda: tmp_path)
    with pytest.raises(FileNotFoundError, match="git checkout") as error:
        load_policy("tiny")
    one_line(error)


def test_a_path_that_does_not_exist_is_one_line(tmp_path):
    with pytest.raises(ValueError, match=r"unknown policy '.*nothing'") as error:
        load_policy(str(tmp_path / "nothing"))
    assert all(name in one_line(error) for name in [*BUILT_IN, "smollm2", "a folder"])


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("cuda", "no device 'cuda' here: PyTorch finds 0 CUDA devices"),
        ("gpu", "unknown device 'gpu'"),
        ("meta", "unknown device 'meta'"),
    ],
)
def test_a_device_that_is_not_there_is_one_line(device, message, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ValueError, match=message) as error:
        load_policy("tiny", device=device)
    one_line(error)
    with pytest.raises(ValueError, match=message):
        warm_start(world(), WarmstartConfig(device=device, steps=0))


def test_an_empty_folder_is_one_line(tmp_path):
    with pytest.raises(ValueError, match="cannot load the policy") as error:
        load_policy(str(tmp_path))
    one_line(error)


@pytest.mark.parametrize("damage", ["weights", "other weights", "config", "tokenizer", "words"])
def test_a_damaged_folder_is_one_line(tmp_path, damage):
    save_policy(tiny_policy(), tmp_path)
    if damage == "weights":
        (tmp_path / "model.safetensors").write_bytes(b"half a file")
    elif damage == "other weights":
        there = json.loads((tmp_path / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps(there | {"hidden_size": 64}))
    elif damage == "words":
        (tmp_path / "tokenizer.json").write_text("{}")
    elif damage == "config":
        (tmp_path / "config.json").write_text('{"model_type": "no-such-model"}')
    else:
        (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(ValueError, match="cannot load the policy") as error:
        load_policy(str(tmp_path))
    one_line(error)


def test_a_tokenizer_config_without_a_class_still_loads(tmp_path):
    save_policy(tiny_policy(), tmp_path)
    path = tmp_path / "tokenizer_config.json"
    kept = {k: v for k, v in json.loads(path.read_text()).items() if k != "tokenizer_class"}
    path.write_text(json.dumps(kept))
    assert load_policy(str(tmp_path)).tokenizer.eos_token == "<eos>"


SMALL = {"vocab_size": len(character_tokenizer()), "hidden_size": 16, "num_attention_heads": 2}
DROPPING = {  # probabilities that sit in layers, in attributes of modules, in the configuration
    "layers": GPT2Config(**SMALL, n_layer=2, attn_pdrop=0.5, embd_pdrop=0.5, resid_pdrop=0.5),
    "attributes": OPTConfig(
        **SMALL,
        ffn_dim=32,
        word_embed_proj_dim=16,
        num_hidden_layers=2,
        dropout=0.5,
        attention_dropout=0.5,
        layerdrop=0.5,
    ),
    "configuration": FalconConfig(
        **SMALL, num_hidden_layers=2, hidden_dropout=0.5, attention_dropout=0.5
    ),
}


@pytest.mark.parametrize("lora", [None, LoraSettings(2, 4)], ids=["all weights", "adapters"])
@pytest.mark.parametrize("place", DROPPING)
def test_nothing_drops_out_of_a_model_in_training_mode(place, lora, tmp_path):
    made = AutoModelForCausalLM.from_config(DROPPING[place], dtype=torch.float32)
    save_policy(Policy(made, character_tokenizer()), tmp_path)
    model = load_policy(str(tmp_path), lora=lora).model
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight)
    tokens = torch.arange(2, 14)[None]

    def logp(training: bool) -> torch.Tensor:
        with torch.no_grad():
            return model.train(training)(input_ids=tokens).logits.log_softmax(-1)

    assert torch.equal(logp(True), logp(False))
    assert not torch.equal(made.train()(input_ids=tokens).logits, made(input_ids=tokens).logits)
