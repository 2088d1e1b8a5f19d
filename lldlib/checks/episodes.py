"""Exercises of notebooks 00 to 03: what an episode is, and which tokens are trained."""

from lldlib.checks.grading import Case, Function, Verdict, grade
from lldlib.world.protocol import parse_action

BYTES_PER_PARAMETER = 16  # float32: weight 4, gradient 4, AdamW's two moments 8


def check_last_batch_above(function: Function) -> Verdict:
    """`function(rewards, level)`: the last batch whose reward is over `level`, or None."""
    return grade(
        function,
        [
            Case(([0.4, 0.7, 0.6, 0.1], 0.5), 2, "Batches count from 0; take the last one over."),
            Case(([0.9, 0.2], 0.5), 0, "The only one over the level is batch 0."),
            Case(([0.5, 0.5], 0.5), None, "Over the level means more than it, not equal to it."),
            Case(([], 0.5), None, "A run without batches never was over anything: give None."),
        ],
    )


def check_training_bytes(function: Function) -> Verdict:
    """`function(parameters)`: bytes of float32 weights, gradients and AdamW's two moments."""
    hint = "Four numbers of 4 bytes for each parameter: weight, gradient, first and second moment."
    sizes = (1, 1000, 494_000_000)
    return grade(function, [Case((size,), BYTES_PER_PARAMETER * size, hint) for size in sizes])


def check_action_mask(function: Function) -> Verdict:
    """`function(turns)` of (role, number of tokens) pairs: one bool a token, True for actions."""
    whole = [("prompt", 2), ("action", 3), ("environment", 1), ("action", 1)]
    mask = [False, False, True, True, True, False, True]
    return grade(
        function,
        [
            Case((whole,), mask, "One value a token, in order; only the policy's turns are True."),
            Case(
                ([("prompt", 1), ("action", 1), ("environment", 2)],),
                [False, True, False, False],
                "What the environment says is not the policy's, also at the end of a row.",
            ),
            Case(([("prompt", 2)],), [False, False], "A row without an action has an empty mask."),
        ],
    )


def check_read_action(function: Function) -> Verdict:
    """`function(text)`: the (kind, content) of the first complete tag pair of a turn."""
    texts = {
        "<search> capital Laos </search>": "Strip the spaces around the content.",
        "<think> so Rome </think> <answer> Rome </answer>": "Text before the tag does not matter.",
        "<search> a </search> <answer> b </answer>": "The first complete pair counts.",
        "<answer> Rome": "A tag that never closes is only text: the action is invalid.",
        "<search>  </search>": "A search without a query is invalid.",
        "<think> hmm </think>": "Neither a search nor an answer: invalid.",
        "<search> a <answer> b </answer>": "The search never closes, so the answer is first.",
    }
    actions = {text: parse_action(text) for text in texts}
    return grade(
        function,
        [Case((t,), (actions[t].kind, actions[t].content), hint) for t, hint in texts.items()],
    )


def check_masked_mean(function: Function) -> Verdict:
    """`function(values, mask)`: the mean of the values whose mask is True; 0.0 if none is."""
    row, chosen = [-1.0, -8.0, -2.0, -3.0], [True, False, True, True]
    return grade(
        function,
        [
            Case(
                (row, chosen), -2.0, "Divide by the number of True, not by the length of the row."
            ),
            Case((row, [False, True, False, False]), -8.0, "Only the second value counts here."),
            Case((row, [False] * 4), 0.0, "An empty mask gives 0.0: nothing to train, no nan."),
        ],
    )


def check_answer_mask(function: Function) -> Verdict:
    """`function(words)`: one bool a word of one turn, True from <answer> to </answer>."""
    texts = {
        "<think> so </think> <answer> Rome </answer>": "The tags belong to the span.",
        "<search> capital Italy </search>": "A turn without an answer has an empty mask.",
        "<answer> Rome": "A tag that never closes is only text: nothing is True.",
        "<answer> a </answer> b </answer>": "The span ends at the first closing tag.",
    }
    masks = ([False] * 3 + [True] * 3, [False] * 4, [False] * 2, [True] * 3 + [False] * 2)
    pairs = zip(texts.items(), masks, strict=True)
    return grade(function, [Case((text.split(),), mask, hint) for (text, hint), mask in pairs])
