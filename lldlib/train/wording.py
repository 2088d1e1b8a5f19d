"""What a half-taught real model thinks aloud in the atlas: plain English from a small grammar.

A thought is one of many openings, needs and remarks, so that the policy has a wording to lose: with
a handful of fixed sentences its entropy is near 0 from the start.
"""

import random

_OPENINGS = (
    *("", "", "", "Okay.", "Hmm.", "Let me think.", "First things first.", "Right.", "Well."),
    *("Let me see.", "One step at a time.", "So.", "Let me work this out.", "Good question."),
)
_NEEDS = (
    "I need the {what} of {key}.",
    "I do not know the {what} of {key}.",
    "I should find the {what} of {key}.",
    "I have to look up the {what} of {key}.",
    "Let me search for the {what} of {key}.",
    "What I need is the {what} of {key}.",
    "It all begins with the {what} of {key}.",
    "A search for {key} should tell me the {what}.",
)
_NEEDS_INVERSE = (
    "I need to know what has the {what} {key}.",
    "I do not know whose {what} is {key}.",
    "I should find out whose {what} is {key}.",
    "I have to look up where the {what} is {key}.",
    "Let me search for the {what} {key}.",
    "What I have is the {what} {key}.",
    "It all begins with the {what} {key}.",
    "A search for {key} should tell me whose {what} it is.",
)
_REMARKS = (
    *("", "", "", "", "Then I can go on.", "That will help.", "After that I will know more."),
    *("Then we will see.", "That is the first thing to find out.", "It should be in the library."),
)
_FINDINGS = (
    "So it is {answer}.",
    "The passage says {answer}.",
    "That gives {answer}.",
    "I read {answer}, so that is it.",
    "It must be {answer}.",
    "Now I know that it is {answer}.",
    "According to what I found, it is {answer}.",
    "The answer is {answer}.",
)


def before_search(rng: random.Random, what: str, key: str, *, inverse: bool) -> str:
    """A thought before a search; `inverse`: the key is the value of what is sought."""
    needs = _NEEDS_INVERSE if inverse else _NEEDS
    need = rng.choice(needs).format(what=what, key=key)
    return _joined(rng.choice(_OPENINGS), need, rng.choice(_REMARKS))


def before_answer(rng: random.Random, answer: str) -> str:
    """A thought before an answer."""
    return _joined(rng.choice(_OPENINGS), rng.choice(_FINDINGS).format(answer=answer))


def _joined(*sentences: str) -> str:
    return " ".join(sentence for sentence in sentences if sentence)
