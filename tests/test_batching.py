"""Episodes to a Batch, by hand-made cases written out token by token."""

import pytest
import torch
from helpers import PLAIN, StubRetriever, character_tokenizer, information, play

from lldlib.policy.load import word_tokenizer
from lldlib.rollout.batch import collate, demonstration
from lldlib.rollout.loop import TokenText
from lldlib.types import Episode, Question, Span, StopReason, Turn
from lldlib.world.protocol import spans

N, F, Q, A = Span.NONE, Span.FREE, Span.QUERY, Span.ANSWER
QUESTION = Question("0", "q", ("x",))


def words() -> TokenText:
    return TokenText(word_tokenizer(["q", "k", "x", "p", "hm"]))


def turn(text: TokenText, role: str, said: str) -> Turn:
    """A turn of `said`; the policy's log-probs are -1, -2, ... so that each can be told apart."""
    tokens = text.encode(said)
    if role != "action":
        return Turn.given(role, tokens)
    logp = [-float(i + 1) for i in range(len(tokens))]
    return Turn(role, tokens, logp, spans([text.piece(token) for token in tokens]))


def episode(text: TokenText, *turns: tuple[str, str], reward=0.0, group=0) -> Episode:
    made = [turn(text, role, said) for role, said in turns]
    return Episode(QUESTION, made, StopReason.ANSWER, "x", 0, 0, reward, group)


def test_two_turns_written_out():
    text = words()
    long = episode(
        text,
        ("prompt", "q"),
        ("action", "hm <search> k </search>"),
        ("environment", "<information> p </information>"),
        ("action", "<answer> x </answer>"),
        reward=1.0,
        group=7,
    )
    short = episode(text, ("prompt", "q q"), ("action", "hm"), group=7)
    batch = collate([long, short])
    one = lambda word: text.encode(word)[0]  # noqa: E731
    tokens = "q hm <search> k </search> <information> p </information> <answer> x </answer>"
    assert batch.tokens[0].tolist() == [one(word) for word in tokens.split()]
    assert batch.span.tolist() == [[N, F, Q, Q, Q, N, N, N, A, A, A], [N, N, F, *[N] * 8]]
    assert batch.action_mask.int().tolist() == [
        [0, 1, 1, 1, 1, 0, 0, 0, 1, 1, 1],
        [0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0],
    ]
    assert batch.attention_mask.int().tolist() == [[1] * 11, [1, 1, 1, *[0] * 8]]
    assert batch.answer_mask.int().tolist() == [[*[0] * 8, 1, 1, 1], [0] * 11]
    assert batch.sampler_logp.tolist() == [
        [0, -1, -2, -3, -4, 0, 0, 0, -1, -2, -3],
        [0, 0, -1, 0, 0, 0, 0, 0, 0, 0, 0],
    ]
    assert batch.rewards.tolist() == [1.0, 0.0] and batch.group.tolist() == [7, 7]


def test_a_demonstration_by_hand():
    text = words()
    shown = demonstration(
        text,
        QUESTION,
        [
            ("q", False),
            ("hm <search> k </search>", True),
            (text.encode("<information> p </information>"), False),
            ("<answer> x </answer>", True),
        ],
    )
    assert [turn.role for turn in shown.turns] == ["prompt", "action", "environment", "action"]
    assert collate([shown]).span.tolist() == [[N, F, Q, Q, Q, N, N, N, A, A, A]]
    assert (shown.answer, shown.stop, shown.valid_searches) == ("x", StopReason.ANSWER, 1)
    open_end = demonstration(text, QUESTION, [("q", False), ("hm </answer>", True)])
    assert (open_end.answer, open_end.stop) == (None, StopReason.EOS)
    assert (open_end.invalid_actions, open_end.reward, open_end.group) == (1, 0.0, 0)


def test_an_end_of_sequence_that_is_also_padding_stays_an_action():
    text = TokenText(character_tokenizer())
    assert text.eos == text.tokenizer.pad_token_id == 0
    ended = episode(text, ("prompt", "q"), ("action", "k<eos>"))
    longer = episode(text, ("prompt", "q"), ("action", "kxk<eos>"))
    batch = collate([ended, longer])
    assert batch.tokens[0, 2:].tolist() == [0, 0, 0]  # the policy's eos, then padding
    assert batch.action_mask.int().tolist() == [[0, 1, 1, 0, 0], [0, 1, 1, 1, 1]]
    assert batch.attention_mask.int().tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]
    assert batch.span.tolist() == [[N, F, F, N, N], [N, F, F, F, F]]


def test_an_empty_response_is_a_row_without_an_action():
    text = words()
    silent = episode(text, ("prompt", "q q"))
    cut = Episode(
        QUESTION, [turn(text, "prompt", "q")], StopReason.TOKEN_BUDGET, None, 0, 0, 0.0, 0
    )
    batch = collate([silent, cut])
    assert not batch.action_mask.any() and (batch.span == N).all()
    assert batch.attention_mask.int().tolist() == [[1, 1], [1, 0]]
    nothing = episode(text, ("prompt", "q"), ("action", ""))
    assert not collate([nothing]).action_mask.any()


def test_only_the_first_action_of_a_turn_is_marked():
    text = words()
    odd = episode(text, ("prompt", "q"), ("action", "<answer> <search> k </search> x </answer>"))
    assert collate([odd]).span.tolist() == [[N, A, A, A, A, A, A]]
    odd = episode(text, ("prompt", "q"), ("action", "<search> k <answer> x </answer>"))
    assert collate([odd]).span.tolist() == [[N, F, F, A, A, A]]


def test_tags_of_the_environment_are_never_marked():
    text = words()
    hostile = episode(
        text,
        ("prompt", "<answer> q </answer>"),
        ("action", "hm"),
        ("environment", "<answer> x </answer>"),
        ("action", "hm"),
    )
    batch = collate([hostile])
    assert batch.span.tolist() == [[N, N, N, F, N, N, N, F]]
    assert not batch.answer_mask.any()


def test_tags_of_many_tokens():
    tokenizer = character_tokenizer()
    script = [("a", "hm<search>k</search>"), ("e", information("p"))]
    script += [("a", "so<answer>x</answer>")]
    stub = StubRetriever(["p"])
    (made,), _ = play(tokenizer, [script], retriever=stub, protocol=PLAIN, max_tokens=200)
    batch = collate([made])
    parts = [
        (N, "Question: q0?\n"),
        (F, "hm"),
        (Q, "<search>k</search>"),
        (N, "\n\n<information> p </information>\n\n"),
        (F, "so"),
        (A, "<answer>x</answer>"),
    ]
    assert batch.span.tolist() == [[label for label, said in parts for _ in said]]


def test_no_episode_is_an_error_of_one_line():
    with pytest.raises(ValueError, match="no episodes to collate"):
        collate([])


def test_the_types_of_the_legend():
    text = words()
    batch = collate([episode(text, ("prompt", "q"), ("action", "x"))])
    assert batch.tokens.dtype == batch.span.dtype == batch.group.dtype == torch.long
    assert batch.attention_mask.dtype == batch.action_mask.dtype == torch.bool
    assert batch.sampler_logp.dtype == batch.rewards.dtype == torch.float32
