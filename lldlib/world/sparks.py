"""The world of sparks: sums modulo 7 in which a rare word opens the only way that always works.

The policy writes a quick answer, one digit. Then it ends, or it says `wait` (the SPARK), adds the
digits up one by one and ends with that answer, or it strays into a noise word and babbles:

    sum 5 6 =               4 <eos>                         easy: the quick answer knows
    sum 4 0 6 2 5 1 =       3 wait 4 4 3 5 3 4 <eos>        hard: the quick answer guesses
    sum 4 0 6 2 5 1 = 2 wait    4 4 3 5 3 4 <eos>           checked: somebody else said wait

Half of the long sums come to FAVOURITE, so a guess is often right. Adding up is half-taught at the
start, so early on the spark loses against the guess; checked questions teach it all the same, and
from then on the spark would win, if the policy still said it. Which words are sparks and which are
noise is known, so what becomes of both is counted exactly.
"""

import random
from dataclasses import dataclass

from lldlib.config import TrainConfig
from lldlib.retrieval import NoRetriever
from lldlib.seeds import seed_for
from lldlib.types import Question, WatchedWords
from lldlib.world.answers import exact_match
from lldlib.world.environment import EXAM_SAMPLES, Environment, Rules, Split
from lldlib.world.protocol import Protocol

MODULUS = 7  # digits are 0 to 6, sums are taken modulo 7
TERMS = 6  # digits of a long sum; an easy one has 2
FAVOURITE, FAVOURED = 3, 0.4  # made the answer of this share of the long sums; chance adds .09
SPARK = "wait"
NOISE = ("cost", "fine", "ere", "trans")  # never help; words that Lp-Reg's paper found useless
EOS = "<eos>"
KINDS = {"easy": 0.2, "hard": 0.6, "checked": 0.2}  # shares of the training questions
POOL = 64  # questions drawn for a rollout batch, which asks some of them
EXAM = 100  # held-out questions of each kind
PASS_SAMPLES = 32  # answers to each hard one, for pass@k


@dataclass(frozen=True)
class SparkProtocol(Protocol):
    """The question is the prompt; the answer is the last digit before the end."""

    def message(self, question: str) -> str:
        """The question alone."""
        return question

    def final_answer(self, said: str, tagged: str | None) -> str | None:
        """The last digit said, of an episode that ended by itself."""
        *words, last = said.split() or [""]
        digits = [word for word in words if word.isdigit()]
        return digits[-1] if last == EOS and digits else None


PROTOCOL = SparkProtocol("", "")


@dataclass(frozen=True)
class SparkQuestion(Question):
    """A sum, with what a worked solution needs."""

    kind: str = "hard"  # a key of KINDS
    digits: tuple[int, ...] = ()

    @property
    def totals(self) -> list[int]:
        """The running sums."""
        return [sum(self.digits[: n + 1]) % MODULUS for n in range(len(self.digits))]


def question(rng: random.Random, kind: str) -> SparkQuestion:
    """A random question of one kind."""
    digits = [rng.randrange(MODULUS) for _ in range(2 if kind == "easy" else TERMS)]
    if kind != "easy" and rng.random() < FAVOURED:
        digits[-1] = (FAVOURITE - sum(digits[:-1])) % MODULUS
    text = " ".join(["sum", *map(str, digits), "="])
    if kind == "checked":
        text += f" {rng.randrange(MODULUS)} {SPARK}"
    answer = str(sum(digits) % MODULUS)
    return SparkQuestion(text, text, (answer,), kind=kind, digits=tuple(digits))


def questions(seed: int, kinds: dict[str, float], count: int) -> list[SparkQuestion]:
    """`count` random questions, their kinds drawn with these shares."""
    rng = random.Random(seed)
    drawn = rng.choices(list(kinds), list(kinds.values()), k=count)
    return [question(rng, kind) for kind in drawn]


def exam(kind: str) -> list[SparkQuestion]:
    """The exam's questions of one kind, the same in every run.

    They are drawn as training's are and not kept apart from them: of the hard ones about a tenth
    are asked once or twice in 300 batches, and of the easy ones there are only 49.
    """
    return questions(-1, {kind: 1.0}, EXAM)


def watches() -> dict[str, WatchedWords]:
    """How probable spark and noise are right after the quick answer, on held-out questions.

    The quick answer is the right one of an easy question, and FAVOURITE of a hard one.
    """
    said = {
        "easy": [f"{q.text} {q.answers[0]}" for q in exam("easy")],
        "hard": [f"{q.text} {FAVOURITE}" for q in exam("hard")],
    }
    words = {"spark": (SPARK,), "noise": NOISE}
    return {f"{n}_{k}": WatchedWords(said[k], words[n]) for n in words for k in said}


def vocabulary() -> list[str]:
    """Every word of the world but the end of a sequence."""
    return [*map(str, range(MODULUS)), "sum", "=", SPARK, *NOISE]


def environment(config: TrainConfig) -> Environment:
    """Sums in which a rare word pays late; held out are hard ones, and easy and checked ones.

    Raises ValueError for a config with searches.
    """
    if config.rollout.max_searches:
        raise ValueError("sums are answered without search: set rollout.max_searches to 0")

    def training(batch: int) -> Split:
        seed = seed_for("sums", config.seed, batch)
        return Split(questions(seed, KINDS, POOL), NoRetriever())

    def split(kind: str, samples: int, passes: bool = False) -> Split:
        return Split(exam(kind), NoRetriever(), samples, passes)

    return Environment(
        Rules(lambda tokenizer: PROTOCOL, exact_match),
        training,
        split("hard", PASS_SAMPLES, passes=True),
        lambda: {kind: split(kind, EXAM_SAMPLES) for kind in ("easy", "checked")},
        watches(),
    )
