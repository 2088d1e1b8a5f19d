"""How many questions have an answer in some passage?

    python data/runs/smollm2/answerable.py CORPUS FILE ... [--limit 200]

An accepted answer must stand in a passage, word by word, as exact match compares words; "yes" and
"no" count as standing there. Standing there is not yet saying it: this is an upper bound.
"""

import argparse
from pathlib import Path

from lldlib.retrieval import load_corpus
from lldlib.world.answers import normalise_answer
from lldlib.world.benchmarks import load_questions


def main() -> None:
    """Print a line a file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--limit", type=int, default=200, help="questions of each file")
    given = parser.parse_args()
    passages = load_corpus(given.corpus)
    words = "\n".join(f" {normalise_answer(f'{one.title} {one.text}')} " for one in passages)
    for file in given.files:
        questions = load_questions(file)[: given.limit]
        found = sum(
            any(
                answer in ("yes", "no") or f" {answer} " in words
                for answer in map(normalise_answer, question.answers)
                if answer
            )
            for question in questions
        )
        print(f"{file.name}: {found} of {len(questions)}, {found / len(questions):.2f}")


if __name__ == "__main__":
    main()
