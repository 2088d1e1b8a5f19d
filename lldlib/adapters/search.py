"""Search as TRL wants it: an environment with a search tool, or whole episodes of our own loop.

Neither needs TRL to be imported. `search_environment` suits models that call tools through their
chat template; `search_rollout` runs the tag protocol of Search-R1 in `lldlib.rollout.loop.Rollout`.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

from transformers import PreTrainedTokenizerBase

from lldlib.retrieval import Retriever, RetrieverError
from lldlib.rollout.loop import TokenText
from lldlib.types import Episode, Question, Span
from lldlib.world.answers import exact_match
from lldlib.world.protocol import numbered

NOTHING = "No passage was found."
DOWN = "The search service is down."
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def search_environment(
    retriever: Retriever, tokenizer: PreTrainedTokenizerBase, *, top_k: int, max_searches: int
) -> type:
    """An environment class for TRL's `environment_factory`: one tool, `search`, over `retriever`.

    TRL encodes what the tool returns. So the marks of the tokenizer's special tokens are broken by
    a space in passages: none of them becomes a control token.

    A row of the dataset holds `prompt` and `answers` (a list of texts). The reward is the exact
    match of the last `<answer>` in the policy's last message: give `environment_reward` to the
    trainer.
    """

    harmless = TokenText(tokenizer).harmless

    class SearchEnvironment:
        """One rollout's searches; TRL resets and uses it again."""

        def reset(self, **row: Any) -> None:
            """Start an episode."""
            self.valid_searches = 0

        def search(self, query: str) -> str:
            """Search a collection of passages.

            Args:
                query: What to look for, in a few words.

            Returns:
                The passages that fit best.
            """
            if self.valid_searches >= max_searches:
                return f"No searches are left: {max_searches} were allowed. Give your answer."
            try:
                found = retriever.search([query], top_k)[0]
            except RetrieverError:
                return DOWN
            self.valid_searches += 1
            return harmless("\n".join(numbered(found))) or NOTHING

    return SearchEnvironment


def environment_reward(
    completions: Sequence[Sequence[dict[str, Any]]], answers: Sequence[Sequence[str]], **_: Any
) -> list[float]:
    """Exact match of the last complete `<answer>` in the last message; TRL's reward signature.

    0 where there is none, or where the conversation ends with what a tool said.
    """
    said = [completion[-1] for completion in completions]
    texts = ["" if last.get("role") == "tool" else str(last.get("content") or "") for last in said]
    return [
        exact_match(found[-1].strip() if found else None, list(accepted))
        for found, accepted in zip(map(_ANSWER.findall, texts), answers, strict=True)
    ]


@runtime_checkable
class EpisodeRunner(Protocol):
    """What makes episodes: `lldlib.rollout.loop.Rollout`, or anything of its signature."""

    def run(self, model, questions: list[Question], *, temperature: float) -> list[Episode]:
        """One episode per question, in order."""
        ...


def search_rollout(
    runner: EpisodeRunner, questions: Sequence[Question]
) -> Callable[[list[str], Any], dict[str, list | None]]:
    """A `rollout_func` for TRL: whole episodes of `runner`, with exact masks.

    The dataset's `prompt` is the text of one of `questions` (unique texts); the runner renders the
    protocol around it. Reward functions get `episode_reward`, by the rules of the runner;
    `rollout_reward` hands it on. Raises ValueError for two questions of one text and for a model
    whose weights are split over processes, KeyError for a prompt that is none.
    """
    by_text = {question.text: question for question in questions}
    if len(by_text) < len(questions):
        raise ValueError("two questions have the same text: a prompt could not tell them apart")

    def rollout(prompts: list[str], trainer: Any) -> dict[str, list | None]:
        """Episodes of the questions whose texts stand in `prompts`, as TRL wants them."""
        model = trainer.accelerator.unwrap_model(trainer.model)
        if any(not p.numel() or hasattr(p, "ds_id") for p in model.parameters()):
            raise ValueError(
                "search_rollout needs the whole model in each process, and here its weights are "
                "split (DeepSpeed ZeRO-3, FSDP): use environment_factory=search_environment(...), "
                "for which TRL itself generates"
            )
        asked = [by_text[prompt] for prompt in prompts]
        episodes = runner.run(model, asked, temperature=trainer.temperature)
        return completions(episodes, filler=trainer.processing_class.eos_token_id)

    rollout.ends_in_tag = True  # an episode ends in </answer>, which TRL takes for a cut
    return rollout


def rollout_reward(episode_reward: Sequence[float], **_: Any) -> list[float]:
    """What the episodes of `search_rollout` earned; TRL's reward signature."""
    return list(episode_reward)


def completions(episodes: Sequence[Episode], *, filler: int) -> dict[str, list | None]:
    """What a `rollout_func` returns: tokens, `env_mask` 1 where the policy chose, and extras.

    `logprobs` is None: TRL reads them for vLLM only. TRL cannot hold an empty completion; one gets
    the token `filler`, which no mask covers.
    """
    rest = [[turn for turn in e.turns[1:] if turn.tokens] for e in episodes]
    tokens = [[token for turn in turns for token in turn.tokens] for turns in rest]
    spans = [[int(span) for turn in turns for span in turn.spans] for turns in rest]
    masks = [[int(span != Span.NONE) for span in row] for row in spans]
    return {
        "prompt_ids": [e.turns[0].tokens for e in episodes],
        "completion_ids": [row or [filler] for row in tokens],
        "env_mask": [mask or [0] for mask in masks],
        "logprobs": None,
        "episode_reward": [e.reward for e in episodes],
        "valid_searches": [e.valid_searches for e in episodes],
        "spans": [row or [int(Span.NONE)] for row in spans],
    }
