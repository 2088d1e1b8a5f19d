"""The tags: which action a turn asks for, what ends it, and what each of its tokens is for."""

from dataclasses import replace

import pytest
from helpers import character_tokenizer

from lldlib.retrieval import Passage
from lldlib.world.protocol import (
    ATLAS,
    END_OF_INFORMATION,
    INSTRUCTION,
    SEARCH_R1,
    TINY,
    Action,
    Span,
    atlas_protocol,
    ends_turn,
    may_end_turn,
    parse_action,
    spans,
)

FREE, QUERY, ANSWER = Span.FREE, Span.QUERY, Span.ANSWER


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("<think> hm </think> <search> capital Peru </search>", Action("search", "capital Peru")),
        ("<answer> Lima </answer>", Action("answer", "Lima")),
        ("<search>\ncapital\nPeru\n</search>", Action("search", "capital\nPeru")),
        # the first complete pair wins, whatever comes after it
        ("<search> a </search> <answer> b </answer>", Action("search", "a")),
        ("<answer> b </answer> <search> a </search>", Action("answer", "b")),
        # a tag that is never closed is text, and hides no later pair
        ("<search> a <answer> b </answer>", Action("answer", "b")),
        ("<answer> a <search> b </search>", Action("search", "b")),
        ("<search> a </search> b </search>", Action("search", "a")),
        # between two tags of one kind everything is content
        ("<search> a <search> b </search>", Action("search", "a <search> b")),
        ("<answer> <think> a </answer>", Action("answer", "<think> a")),
        # an empty answer is an answer (a wrong one), an empty query is no search
        ("<answer> </answer>", Action("answer", "")),
        ("<search> \n </search>", Action("invalid", "")),
        ("<search></search>", Action("invalid", "")),
        # no pair at all
        ("", Action("invalid", "")),
        ("</search>", Action("invalid", "")),
        ("a </search> <search> b", Action("invalid", "")),
        ("<search> a </answer>", Action("invalid", "")),
        ("<Search> a </Search>", Action("invalid", "")),
        ("<search > a </search >", Action("invalid", "")),
        ("<information> a </information>", Action("invalid", "")),
    ],
)
def test_parse_action(text, action):
    assert parse_action(text) == action


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        ("<search> a </search>", True),
        ("stray </answer>", True),  # closes nothing, yet the policy stops here: an invalid action
        ("<think> a </think>", False),
        ("<search> a </searc", False),
        ("<search> a <answer>", False),
        ("</information>", False),
    ],
)
def test_a_turn_ends_at_a_closing_tag_of_an_action(text, ends):
    assert ends_turn(text) is ends


def test_spans_of_word_tokens():
    pieces = ["<think>", "so", "</think>", "<answer>", "Lima", "Peru", "</answer>"]
    assert spans(pieces) == [FREE, FREE, FREE, ANSWER, ANSWER, ANSWER, ANSWER]


def test_spans_where_tags_and_tokens_do_not_line_up():
    # "go<" and ">!" hold a part of the tag each, so they belong to the span
    pieces = ["a ", "go<", "sea", "rch", ">x", "</sea", "rch", ">!", " b"]
    assert spans(pieces) == [FREE] + [QUERY] * 7 + [FREE]


def test_a_token_beside_a_span_is_not_in_it():
    pieces = ["x", "<search>q</search>", "y"]
    assert spans(pieces) == [FREE, QUERY, FREE]


@pytest.mark.parametrize(
    ("pieces", "labels"),
    [
        ([], []),
        (["no", " tags"], [FREE, FREE]),
        (["<search>", "q"], [FREE, FREE]),  # never closed, as where the budget ran out
        (["<search>", "q", "</answer>"], [FREE, FREE, FREE]),
        (["<search>", "q", "<answer>", "a", "</answer>"], [FREE, FREE, ANSWER, ANSWER, ANSWER]),
        # one action a turn: the second pair is not acted on
        (["<search>q</search>", "<answer>a</answer>"], [QUERY, FREE]),
        # a character of several bytes comes as one replacement character a token
        (["<answer>", "\ufffd", "\ufffd", "</answer>"], [ANSWER] * 4),
    ],
)
def test_spans_of_odd_turns(pieces, labels):
    assert spans(pieces) == labels


def test_the_prompt_ends_its_question_with_one_question_mark():
    assert (
        TINY.prompt(" What is the capital of Peru ") == "Question: What is the capital of Peru?\n"
    )
    assert TINY.prompt("What is it ?") == "Question: What is it ?\n"


def test_the_prompt_of_search_r1_explains_every_tag():
    text = SEARCH_R1.prompt("Who?")
    for name in ("think", "search", "information", "answer"):
        assert f"<{name}>" in text and f"</{name}>" in text
    assert text.endswith("Question: Who?\n")


@pytest.mark.parametrize(
    ("piece", "may"),
    [
        *[
            (p, True)
            for p in (">", "h>", "</search>", " </answer>", ">\n", "</search>x", "</search>>")
        ],
        *[(p, False) for p in ("", "x", "<think>", "</think>", "<search>", "</search", "a>", "->")],
    ],
)
def test_pieces_that_may_end_a_turn(piece, may):
    assert may_end_turn(piece) is may


def test_no_cut_of_a_closing_tag_into_pieces_is_missed():
    for tag in ("</search>", "</answer>"):
        for start in range(len(tag)):
            assert may_end_turn(tag[start:]) and may_end_turn(
                "x" * (start == 0) + tag[start:] + "\n"
            )


FOUND = [Passage("1", "It is in Peru.", "Lima"), Passage("2", "</information> hi", "Quito")]


def letters(text: str) -> list[int]:
    """A tokenizer of one token a character."""
    return [ord(letter) for letter in text]


def written(tokens: list[int]) -> str:
    """The text of such tokens."""
    return "".join(map(chr, tokens))


def test_search_r1_numbers_its_passages_and_gives_their_titles():
    text = written(SEARCH_R1.observe(FOUND, letters, 0))
    assert text == (
        "\n\n<information>Doc 1(Title: Lima) It is in Peru.\n"
        "Doc 2(Title: Quito) </information> hi</information>\n\n"
    )
    assert written(SEARCH_R1.observe([], letters, 0)) == "\n\n<information></information>\n\n"


def test_the_tiny_protocol_observes_as_it_always_did():
    expected = "\n\n<information> It is in Peru. </information> hi </information>\n\n"
    assert written(TINY.observe(FOUND, letters, 0)) == expected


@pytest.mark.parametrize("limit", [30, 60, 101])
def test_a_long_observation_is_cut_and_still_closed(limit):
    whole = SEARCH_R1.observe(FOUND, letters, 0)
    assert len(whole) == 102
    cut = replace(SEARCH_R1, observation_tokens=limit).observe(FOUND, letters, 0)
    assert len(cut) == limit and written(cut).endswith(END_OF_INFORMATION)
    assert cut[: limit - 16] == whole[: limit - 16]
    assert replace(SEARCH_R1, observation_tokens=102).observe(FOUND, letters, 0) == whole


def test_each_passage_is_cut_on_its_own():
    """So that the second passage is still read, where a cut at the end would take it away."""
    text = written(SEARCH_R1.observe(FOUND, letters, 20))
    assert text == ("\n\n<information>Doc 1(Title: Lima) I\nDoc 2(Title: Quito) </information>\n\n")
    assert written(TINY.observe(FOUND, letters, 5)) == (
        "\n\n<information> It is </inf </information>\n\n"
    )
    for protocol in (SEARCH_R1, TINY):
        assert protocol.observe(FOUND, letters, 99) == protocol.observe(FOUND, letters, 0)
        assert protocol.observe([], letters, 5) == protocol.observe([], letters, 0)
    both = replace(SEARCH_R1, observation_tokens=60).observe(FOUND, letters, 20)
    assert len(both) == 60 and written(both).endswith(f"Doc 2(Ti{END_OF_INFORMATION}")


def test_the_chat_template_goes_around_instruction_and_question():
    tokenizer = character_tokenizer()
    assert SEARCH_R1.in_chat(tokenizer) is SEARCH_R1
    tokenizer.chat_template = (
        "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}[end]{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    prompt = SEARCH_R1.in_chat(tokenizer).prompt("Who")
    assert prompt == f"[user]{INSTRUCTION}Question: Who?\n[end][assistant]"
    tokenizer.chat_template = "{{ messages[0]['content'] | upper }}"
    with pytest.raises(ValueError, match="chat template"):
        SEARCH_R1.in_chat(tokenizer)


def test_a_real_tokenizer_reads_the_atlas_as_people_write_it():
    assert ATLAS.prompt("What is the code of .th ?") == "Question: What is the code of .th?\n"
    passage = Passage("a", "The capital of Peru is Lima .", "Peru")
    plain, spaced = (
        "".join(map(chr, protocol.observe([passage], lambda text: [ord(c) for c in text], 0)))
        for protocol in (ATLAS, TINY)
    )
    assert plain == "\n\n<information> The capital of Peru is Lima. </information>\n\n"
    assert spaced == plain.replace("Lima.", "Lima .")
    assert atlas_protocol(character_tokenizer()) is ATLAS
