"""What an engine saw of a rollout batch -> this project's metrics, phases, alarm and run folder."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lldlib.losses.lp_reg import Selection
from lldlib.runs import measures as diagnostics
from lldlib.runs.folder import Run, RunWriter
from lldlib.runs.phases import PHASES, Monitor
from lldlib.world.protocol import parse_action, spans


@dataclass(frozen=True)
class Seen:
    """One rollout batch after its updates: what was done before them, and what they did."""

    logp: Float[Tensor, "B T"]  # of the policy that sampled
    new_logp: Float[Tensor, "B T"]  # after the batch's updates
    rewards: Float[Tensor, " B"]
    advantages: Float[Tensor, " B"]
    action_mask: Bool[Tensor, "B T"]
    proxy_logp: Float[Tensor, "B T"] | None  # Lp-Reg's, if it is on
    quantile: float  # lp_reg_quantile
    selection: Selection  # lp_reg_selection


@dataclass(frozen=True)
class Probe:
    """The fixed correct trajectories, scored under the current policy."""

    logp: Float[Tensor, "N T"]
    action_mask: Bool[Tensor, "N T"]
    span: Int[Tensor, "N T"]


def measure(seen: Seen, probe: Probe | None) -> dict[str, float]:
    """Likelihood, displacement, rare tokens and probe, under the keys of the glossary."""
    row = diagnostics.likelihood(seen.logp, seen.rewards, seen.action_mask)
    row |= diagnostics.official_likelihood(seen.logp, seen.advantages, seen.action_mask)
    row |= diagnostics.displacement(seen.logp, seen.new_logp, seen.rewards, seen.action_mask)
    row |= diagnostics.token_displacement(
        seen.logp, seen.new_logp, seen.advantages, seen.action_mask
    )
    rows = (seen.logp, seen.proxy_logp, seen.advantages, seen.action_mask)
    row |= diagnostics.low_probability(*rows, seen.quantile, seen.selection)
    row["length/tokens"] = float(seen.action_mask.sum(1).float().mean())
    if probe is not None:
        row |= diagnostics.probe_report(probe.logp, probe.action_mask, probe.span)
    return row


def read_spans(
    tokens: Int[Tensor, "B T"], action_mask: Bool[Tensor, "B T"], piece: Callable[[int], str]
) -> tuple[Int[Tensor, "B T"], list[int]]:
    """The Span of every token, and per row how many of its actions search, from the tags written.

    `piece` gives the text of one token. Only the policy's own tokens are read, so a tag in a
    retrieved text means nothing.
    """
    labels, searches = torch.zeros_like(tokens), []
    for row, (ids, mask) in enumerate(zip(tokens.tolist(), action_mask.tolist(), strict=True)):
        count = 0
        for start, end in runs(mask):
            pieces = [piece(token) for token in ids[start:end]]
            labels[row, start:end] = torch.tensor([int(label) for label in spans(pieces)])
            count += parse_action("".join(pieces)).kind == "search"  # one without a query is none
        searches.append(count)
    return labels, searches


def tool_results(completion_mask: Int[Tensor, "B T"], tool_mask: Int[Tensor, "B T"]) -> list[int]:
    """Per row, the runs of completion tokens that the policy did not choose: what its tools said.

    The masks are TRL's; tools that one action calls together count as one.
    """
    told = completion_mask.bool() & (tool_mask == 0)
    return [len(runs(row)) for row in told.tolist()]


def given_spans(spans: Sequence[Sequence[int]], tokens: Int[Tensor, "B T"]) -> Int[Tensor, "B T"]:
    """The spans that a rollout has set, padded to the shape of its tokens."""
    labels = torch.zeros_like(tokens)
    for row, found in enumerate(spans):
        labels[row, : len(found)] = torch.tensor(found, device=tokens.device)
    return labels


def runs(mask: Sequence[bool]) -> list[tuple[int, int]]:
    """(start, end) of every maximal run of True: the actions of a row."""
    edges = [t for t in range(len(mask)) if mask[t] and (t == 0 or not mask[t - 1])]
    stops = [t + 1 for t in range(len(mask)) if mask[t] and (t + 1 == len(mask) or not mask[t + 1])]
    return list(zip(edges, stops, strict=True))


def episode_record(
    prompt: Sequence[int],
    tokens: Sequence[int],
    action_mask: Sequence[bool],
    logp: Sequence[float],
    reward: float,
    decode: Callable[[Sequence[int]], str],
) -> dict[str, Any]:
    """One episode for rollouts.jsonl, its turns read off the mask; `tokens` without padding."""
    turns, at, answer = [{"role": "prompt", "text": decode(prompt), "logp": []}], 0, None
    for start, end in runs(action_mask):
        if start > at:
            turns.append({"role": "environment", "text": decode(tokens[at:start]), "logp": []})
        text, at = decode(tokens[start:end]), end
        turns.append({"role": "action", "text": text, "logp": list(logp[start:end])})
        action = parse_action(text)
        answer = action.content if action.kind == "answer" else None
    if at < len(tokens):
        turns.append({"role": "environment", "text": decode(tokens[at:]), "logp": []})
    return {"question": turns[0]["text"], "answer": answer, "reward": reward, "turns": turns}


class Watch:
    """Logs rollout batches to a run folder (None: to nowhere) and rings the alarm."""

    def __init__(self, folder: Path | str | None):
        self.folder = folder
        self.writer: RunWriter | None = None
        self.monitor = Monitor()

    def open(self, config: Mapping[str, Any], batch: int | None) -> None:
        """Start the run folder (`batch` None), or go on with it at `batch`.

        Raises FileExistsError where a run would be written over.
        """
        if self.folder is None:
            return
        if batch is None:
            self.writer = RunWriter.create(self.folder, config)
            return
        self.writer = RunWriter.resume(self.folder, batch)
        self.monitor = Monitor(Run(self.folder).metrics)

    def batch(self, index: int, row: Mapping[str, float]) -> dict[str, float]:
        """Log batch `index`; returns {"phase", "alarm"}.

        `phase` is the place in `PHASES` of the live phase; `alarm` is 1 once it rang. In the run
        folder the alarm is an event of the batch at which it first rings.
        """
        self.monitor.add(row)
        phase, rung = self.monitor.phase, self.monitor.rung
        if self.writer is not None:
            self.writer.metrics(index, row)
            if rung == index:
                self.writer.event(index, "alarm")
        return {"phase": float(PHASES.index(phase)), "alarm": float(rung is not None)}

    def rollout(self, index: int, record: Mapping[str, Any]) -> None:
        """Log one episode of batch `index`."""
        if self.writer is not None:
            self.writer.rollout(index, record)

    def close(self) -> None:
        """Close the run folder's files."""
        if self.writer is not None:
            self.writer.close()
