"""One arm of the lean-head bench: a line on standard input, one step, one JSON line."""

import json
import sys

import torch
from torch import Tensor, nn

from .timing import clock


def peak_bytes(work) -> int:
    """The most bytes of tensors that `work` holds at a time, beside what was there before."""
    settings = {"activities": [torch.profiler.ProfilerActivity.CPU], "profile_memory": True}
    with torch.profiler.profile(**settings) as profiler:
        work()
    now = peak = 0
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    for event in sorted(events, key=lambda e: e.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak


def log_probs(arm: str, head: nn.Linear, hidden: Tensor, targets: Tensor) -> Tensor:
    """(N,) log-probs of the targets at temperature 0.7."""
    if arm == "lldlib":
        from lldlib.policy.head import head_scores

        return head_scores(head, hidden, targets, 0.7).logp
    if arm == "trl":
        from trl.kernels import ChunkedLogProbFunction
        from trl.trainer.utils import _CHUNKED_LOGPROB_CHUNK_SIZE

        settings = (0.7, _CHUNKED_LOGPROB_CHUNK_SIZE, None, 1.0, ("log_probs",))
        return ChunkedLogProbFunction.apply(hidden, head.weight, None, targets, *settings)[0]
    logits = head(hidden).float() / 0.7
    return logits.log_softmax(-1).gather(-1, targets[:, None])[:, 0]


def main() -> None:
    """Answer every line with {seconds, and for the first one peak}."""
    order = json.loads(sys.argv[1])
    tokens, width, vocabulary = order["shape"]
    torch.set_num_threads(1)
    torch.manual_seed(0)
    head = nn.Linear(width, vocabulary, bias=False).requires_grad_(not order["frozen"])
    hidden = torch.randn(tokens, width, requires_grad=True)
    targets = torch.randint(vocabulary, (tokens,))

    def step() -> None:
        head.zero_grad(set_to_none=True)
        hidden.grad = None
        log_probs(order["arm"], head, hidden, targets).mean().backward()

    first = True
    for _ in sys.stdin:
        answer, start = {}, clock()
        if first:
            answer["peak"] = peak_bytes(step)
        else:
            step()
        first = False
        print(json.dumps(answer | {"seconds": clock() - start}), flush=True)


if __name__ == "__main__":
    main()
