"""The glossary page: every logged key and every symbol of the notebooks, for readers on GitHub.

`python notebooks/glossary_page.py` writes GLOSSARY.md anew. A letter can stand for more than one
thing, as in the papers; each meaning has a line of its own. Shapes use the letters of
`lldlib.types`.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from lldlib.files import markdown_table, write_whole
from lldlib.runs.glossary import GLOSSARY, PHASES

PAGE = Path(__file__).resolve().with_name("GLOSSARY.md")
VERBATIM = re.compile(r"(`[^`]*`|\$[^$]*\$)|[|*_<]")  # kept as it is | escaped

INTRODUCTION = """# Glossary

The words and symbols of the notebooks, and every key that a run logs. Made of
`lldlib/runs/glossary.py` and `notebooks/glossary_page.py` by `python notebooks/glossary_page.py`:
change those, not this page.

"Batch" is a rollout batch; `k` in a key is the number of an action, `<reason>` a reason to stop.
Log-probs are natural logarithms, in nats.
"""

WORDS = {
    "action": "one turn of the agent: an unbroken stretch of tokens that it chose itself",
    "action mask": "says of each token whether the agent chose it",
    "advantage": "how much better an answer is than its group: reward minus mean, over deviation",
    "arm": "a set of runs with the same settings",
    "batch": "a set of questions with their groups of answers, used for several updates",
    "CISPO": "a loss without a clip (2506.13585): a token's weight is its ratio, at most a cap, "
    "held constant",
    "clip": "GRPO stops pushing a token whose ratio has left 1 - epsilon to 1 + epsilon; "
    "the gradient clip shortens a long gradient to a length of 1",
    "collapse": "the mean reward of ten batches falls under .3 of its best",
    "dip": "how far the mean reward of ten batches sinks under its best before",
    "exact match": "the share of questions whose answer is exactly right",
    "fresh answers": "answers of the same policy to the same questions that are not trained on",
    "gate": "LLDS charges an action only if it lost likelihood in total",
    "group": "the answers to one question in one batch",
    "GRPO": "group relative policy optimization (2402.03300)",
    "GSPO": "group sequence policy optimization (2507.18071): one ratio for a whole answer",
    "half-taught": "the start of the runs in the shuffled atlas: it looks up one thing and answers",
    "held out": "the questions about the true facts, which training never shows",
    "hop": "one look-up that a question needs",
    "limited": "a run whose every update may move the policy no further than one fixed limit",
    "LLD": "lazy likelihood displacement: a rewarded answer gains no likelihood, or loses some",
    "LLDS": "the penalty against it (2512.04220); LLDS-MA charges the final answer less",
    "log-prob": "the natural logarithm of a token's probability; its unit is the nat",
    "Lp-Reg": "low-probability regularization (2510.03222): keeps some rare tokens from dying out",
    "matched": "a run no update of which may move further than the same one of a run with LLDS",
    "miss": "a search that returns a random passage",
    "NTHR": "negative token hidden reward (2505.18830): weakens some tokens of wrong answers",
    "planet": "one shuffle of the facts: the world of one batch",
    "probe": "answers that were right at the start, scored again after every batch",
    "QLoRA": "small trained adapters on a large model whose own weights are held in 4 bits",
    "RAGEN-2": "its choice of prompts (2604.06268): only the groups whose rewards differ most are "
    "trained on",
    "ratio": "how much more likely a token has become since it was written",
    "REINFORCE": "reward minus the group's mean, times log-prob: no deviation, no ratio, no clip",
    "row": "one answer with its whole transcript",
    "SAPO": "GRPO and a pull on tokens of good answers whose ratio has fallen far (2603.10069)",
    "SEAL": "GRPO and a small network that tells good answers from bad ones (2605.27954)",
    "seed": "one repetition of a run with other random draws",
    "settles": "of a long run: it neither dies nor sways",
    "spark": "a rare useful word, in the world of sparks",
    "sways": "of a long run: a late test is .15 or more under the best before, and it does not die",
    "token": "the unit that a model writes: in the small worlds a whole word",
    "update": "one step of the optimizer",
}

PHASES_TEXT = """## Phases

A label of each batch, off the reward and the log-prob of the probe (`probe/content`). A finished
run is labelled with hindsight, a run that goes on live: by what was known at that batch. The rule
and its check: [data/atlas/phases.md](../data/atlas/phases.md).
"""


@dataclass(frozen=True)
class Symbol:
    """One meaning of one symbol."""

    letter: str  # bare, without index: one letter, or one LaTeX command
    written: str  # LaTeX, as a notebook writes it
    shape: str  # "scalar", "(B, T)", ...; "-" for a name or an index
    meaning: str  # with its unit; the name in `lldlib` where there is one


def _symbols(*rows: tuple[str, str, str, str]) -> tuple[Symbol, ...]:
    return tuple(Symbol(*row) for row in rows)


SYMBOLS: tuple[Symbol, ...] = _symbols(
    # -- sizes and indices ---------------------------------------------------------------------
    ("P", "P", "scalar", "questions (problems) of a rollout batch"),
    ("G", "G", "scalar", "rollouts per question: the group size"),
    ("B", "B", "scalar", "rows of a batch, P times G"),
    ("T", "T", "scalar", "tokens of the longest row; also the last turn of a trajectory"),
    (
        "V",
        "V",
        "scalar",
        "tokens of the vocabulary; V_s: mean valid searches at step s (LLDS-MA); a mean reward",
    ),
    (
        "d",
        "d",
        "scalar",
        "size of a hidden state; ln proxy - ln pi of a token, in nats; a paired difference",
    ),
    ("N", "N", "scalar", "a number of tokens; N_pre: those of rows with A >= 0"),
    ("n", "n", "scalar", "a number of tokens or responses"),
    ("i", "i", "-", "index of a response (a row)"),
    ("j", "j", "-", "index of an incorrect response, or of another row"),
    ("t", "t", "-", "index of a token, of an action, or of a rollout batch: the text says which"),
    ("k", "k", "-", "index of a token inside a row or an action; in pass@k answers to a question"),
    ("l", "l", "-", "index in a sum"),
    ("s", "s", "-", "index of an earlier batch, or of a seed; s_i: GSPO's ratio of a whole row"),
    ("u", "u", "-", "any token of the vocabulary, in a sum"),
    ("v", "v", "-", "any token of the vocabulary"),
    # -- trajectories --------------------------------------------------------------------------
    ("x", "x", "-", "the prompt; also an unknown number"),
    ("y", "y_t", "-", "what the policy wrote: a token, an action, a response (y^+ right, y^- not)"),
    ("E", r"\mathbb E_i", "-", "the mean over responses i"),
    ("Q", "Q", "scalar", "mean reward of the answers that say a word at a place"),
    ("Y", "Y_{pre}", "-", "the preserved responses, those with A >= 0 (`preserved_mask`)"),
    ("o", "o_t", "-", "tool feedback after action t; in Lp-Reg's equations a sampled token"),
    ("m", "m", "(B, T)", "`action_mask`: the policy chose the token; also a mean"),
    (
        "c",
        "c",
        "scalar",
        "similarity (cosine) of two contexts; an index of actions; right ones of n answers",
    ),
    # -- rewards and advantages ----------------------------------------------------------------
    ("r", "r", "(P, G)", "reward of a rollout"),
    ("R", "R_t", "scalar", "mean reward of rollout batch t"),
    ("w", "w", "scalar", "window of a trailing mean, in batches; also a weight on answer tokens"),
    ("A", "A_i", "(B,)", "`advantages`: the group-relative advantage of a row"),
    ("p", "p", "(V,)", "a probability; p_{p,g} as an index: the question; p^+, p^-: group weights"),
    ("g", "g", "-", "index of a rollout in its group; also a prediction error"),
    (r"\mu", r"\mu", "scalar", "mean reward of a group"),
    (r"\sigma", r"\sigma", "scalar", "standard deviation of a group's rewards"),
    # -- the policy ----------------------------------------------------------------------------
    (r"\pi", r"\pi_\theta", "(V,)", "the policy: next-token probabilities in a context"),
    (r"\theta", r"\theta", "-", "the policy's weights"),
    ("z", "z", "(V,)", "logits"),
    ("h", "h", "(d,)", "hidden state from which a token is predicted"),
    ("W", "W", "(V, d)", "weights of a linear head"),
    ("b", "b", "(V,)", "its bias"),
    ("e", "e_y", "(V,)", "the unit vector of token y; e^x: the exponential"),
    (r"\alpha", r"\alpha", "scalar", "inner product of two prediction errors e_y - pi"),
    ("H", "H", "(B, T)", "`entropy` of the next-token distribution, nats"),
    (r"\xi", r"\xi_{s,t,p}", "-", "the random draws of run seed s, batch t, purpose p"),
    ("q", "q", "(V,)", "another distribution, or one probability of it"),
    # -- losses --------------------------------------------------------------------------------
    ("L", "L", "(B, T)", "a loss, to be minimised; as a scalar its `aggregate`"),
    ("J", "J", "scalar", "an objective, to be maximised: minus a loss"),
    ("D", r"D_{KL}", "(B, T)", "Kullback-Leibler divergence, nats"),
    ("I", r"\mathbb{I}[\cdot]", "(B, T)", "1 where the condition holds, else 0"),
    ("M", "M", "-", "a mask or a matrix that the text names"),
    ("S", "S", "-", "a set of tokens or rows that the text names"),
    (r"\epsilon", r"\epsilon", "scalar", "clip range of the ratio (0.2); also a small constant"),
    (r"\varepsilon", r"\varepsilon", "scalar", "the same as epsilon"),
    (r"\gamma", r"\gamma", "(B, T)", "the ratio pi / pi_old of a token"),
    ("U", "U", "scalar", "Lp-Reg's cap of the ratio (10): `ratio_cap`"),
    (r"\Delta", r"\Delta_k", "(B, T)", "new - old log-prob of a token, nats: under 0 it lost"),
    (r"\lambda", r"\lambda", "scalar", "weight of LLDS: `llds_coef`"),
    (r"\beta", r"\beta", "scalar", "weight of Lp-Reg: `lp_reg_coef`; in LLDS-MA of answer tokens"),
    (r"\rho", r"\rho", "scalar", "Lp-Reg's share of rare tokens: `lp_reg_quantile`"),
    (r"\delta", r"\delta^B_\rho", "scalar", "rare threshold: the batch's rho-quantile of pi"),
    (r"\kappa", r"\kappa", "scalar", "min-p: a token under kappa times the largest pi is dropped"),
    (r"\tau", r"\tau", "scalar", "threshold under which the proxy drops a token"),
    ("Z", "Z", "(B, T)", "the probability that the proxy's filter keeps: proxy / pi is 1 / Z"),
    (r"\eta", r"\eta", "scalar", "step size; in NTHR the factor on selected tokens"),
    (r"\phi", r"\phi", "-", "another policy's weights"),
    ("a", "a", "scalar", "a constant of a fit (R = -a e^H + b)"),
    ("f", "f", "-", "a function that the text names"),
    ("C", "C", "scalar", "a covariance of log-prob and advantage (KL-Cov), or a cap"),
    ("K", "K", "scalar", "a number of actions or of the k largest"),
)

NOT_SYMBOLS = re.compile(r"\\(?:text|mathrm|operatorname|begin|end)\*?\{[^{}]*\}")
PIECE = re.compile(r"\\[A-Za-z]+|[A-Za-z]+")
GREEK = set(
    "alpha beta gamma delta epsilon varepsilon zeta eta theta iota kappa lambda mu nu xi pi rho "
    "sigma tau phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega".split()
)


def letters_of(formula: str) -> set[str]:
    """The bare symbols of a LaTeX formula: single letters and Greek commands.

    Words of two letters and more are labels or functions, not symbols.
    """
    pieces = PIECE.findall(NOT_SYMBOLS.sub(" ", formula))
    return {p for p in pieces if len(p) == 1 or (p[0] == "\\" and p[1:] in GREEK)}


def glossary_page() -> str:
    """The page's text: a table of symbols, of phases, and of the keys of each family."""
    symbols = [(f"${s.written}$", s.shape, s.meaning) for s in SYMBOLS]
    parts = [INTRODUCTION, "## Words\n", _table(("word", "meaning"), list(WORDS.items()))]
    parts += ["## Symbols\n", _table(("symbol", "shape", "meaning"), symbols)]
    parts += [PHASES_TEXT, _table(("phase", "meaning"), list(PHASES.items()))]
    families = dict.fromkeys(key.partition("/")[0] for key in GLOSSARY)
    for family in families:
        rows = [
            (f"`{key}`", metric.formula, metric.unit, metric.healthy)
            for key, metric in GLOSSARY.items()
            if key.partition("/")[0] == family
        ]
        head = ("key", "formula", "unit", "a healthy run")
        parts += [f"## Keys: {family}\n", _table(head, rows)]
    return "\n".join(parts)


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    return markdown_table(head, [[_cell(text) for text in row] for row in rows]) + "\n"


def _cell(text: str) -> str:
    """Escape what Markdown would read, outside code and formulas; a bar would end the cell."""
    return VERBATIM.sub(lambda found: found[0] if found[1] else f"\\{found[0]}", text)


if __name__ == "__main__":
    write_whole(PAGE, glossary_page())
