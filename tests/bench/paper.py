"""What a GPU could do at most, on paper: `python -m tests.bench.paper` prints the table.

Bytes and operations are counted by running the package's own code on tensors without storage: an
operation reads its inputs and writes its output once, views are free, matrix products run at the
rate that was measured for large ones, everything else at the rate of the memory. Launches are the
operations that are not views, at the time between two of them on the host.
"""

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForCausalLM

from lldlib.policy.head import head_scores, next_token
from lldlib.policy.memory import NF4_BYTES, _replace_weights, configuration
from lldlib.rollout.decode import make_decoder

from .battery_parts import MODELS

CARDS = {"H200": (4.3e12, 790e12), "H100": (3.35e12, 790e12)}  # bytes and operations a second
LAUNCH = 5e-6  # seconds between two launches from Python, an assumption
ROWS, CONTEXT = 40, 1024  # rows and cached tokens of a decode step
SCORED = 8 * 1388  # tokens of a scoring pass: the battery's rows of eight
FREE = set(  # views and questions
    "view _unsafe_view transpose expand slice select unsqueeze squeeze permute split as_strided"
    " alias detach t unfold narrow empty device size stride".split()
)
PRODUCTS = ("mm", "bmm", "addmm", "linear", "matmul")


class Count(TorchDispatchMode):
    """Launches, bytes beside matrix products, and operations of these."""

    def __init__(self):
        super().__init__()
        self.launches = self.bytes = self.product_bytes = 0
        self.operations = 0.0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        name = function.__name__.split(".")[0].rstrip("_")
        if name in FREE:
            return out
        self.launches += 1
        tensors = [t for t in tree_leaves((args, kwargs, out)) if isinstance(t, torch.Tensor)]
        moved = sum(t.numel() * t.element_size() for t in tensors)
        if name in ("index", "index_put", "embedding", "gather"):  # reads what it takes, not all
            floats = [t for t in tensors if t.is_floating_point()]
            moved = 2 * min((t.numel() * t.element_size() for t in floats), default=0)
        if name in PRODUCTS:
            left, right = [t for t in tensors if t.dim() >= 2][:2]
            self.operations += 2.0 * left.numel() * right.shape[-1]
            self.product_bytes += moved
        else:
            self.bytes += moved
        return out


def model(name: str) -> torch.nn.Module:
    """Of this shape in bfloat16, without storage; to be called inside a FakeTensorMode."""
    with torch.device("meta"):
        made = AutoModelForCausalLM.from_config(configuration(name), dtype=torch.bfloat16)
    _replace_weights(made)
    return made.eval()


@torch.no_grad()
def decode(policy: torch.nn.Module) -> Count:
    """One token of every row."""
    decoder = make_decoder(policy, ROWS, CONTEXT + 1)
    tokens = torch.zeros(ROWS, dtype=torch.long)
    with Count() as count:
        hidden = decoder.states(decoder.single(tokens, tokens, CONTEXT))
        next_token(
            policy.get_output_embeddings(), hidden, temperature=0.7, uniform=torch.rand(ROWS)
        )
    return count


@torch.no_grad()
def scoring(policy: torch.nn.Module) -> Count:
    """Log-probs of eight rows."""
    tokens = torch.zeros(8, SCORED // 8, dtype=torch.long)
    with Count() as count:
        hidden = policy.get_decoder()(input_ids=tokens, use_cache=False).last_hidden_state
        head_scores(policy.get_output_embeddings(), hidden.flatten(0, 1), tokens.flatten(), 1.0)
    return count


def row(label: str, name: str, card: str) -> str:
    """A line of the table."""
    bandwidth, rate = CARDS[card]
    with FakeTensorMode():
        policy = model(name)
        linear = sum(
            m.weight.numel()
            for m in policy.get_decoder().modules()
            if isinstance(m, torch.nn.Linear)
        )
        step, scored = decode(policy), scoring(policy)
        weights = sum(p.numel() for p in policy.parameters())
    bytes_ = step.bytes + step.product_bytes
    # 4-bit weights are read, written out in bfloat16 and read again
    packed = bytes_ + linear * (NF4_BYTES + 2)
    fast, slow = bytes_ / bandwidth, packed / bandwidth
    seconds = scored.operations / rate + scored.bytes / bandwidth
    share = 2 * weights * SCORED / seconds / 989e12
    cells = [
        f"{label}, {card}",
        f"{bytes_ / ROWS / 1e9:.2f}",
        f"{ROWS / fast:,.0f}",
        f"{ROWS / slow:,.0f}",
        str(step.launches),
        f"{ROWS / max(fast, step.launches * LAUNCH):,.0f}",
        f"{SCORED / seconds:,.0f}",
        f"{100 * share:.0f} %",
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    head = ["model, card", "GB a token", "tokens/s, bf16", "tokens/s, NF4", "launches a step"]
    head += ["tokens/s without a graph", "scored tokens/s", "share of the peak"]
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for label, name in MODELS.items():
        for card in CARDS:
            print(row(label, name, card), flush=True)


if __name__ == "__main__":
    main()
