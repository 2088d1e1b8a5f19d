"""Settings of an evaluation on benchmarks."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ExamConfig:
    """How questions are asked; the defaults are Search-R1's and Lp-Reg's budgets."""

    limit: int | None = None  # questions a task; a larger limit only adds questions
    rows: int = 32  # episodes at a time
    max_searches: int = 4  # turns that may search
    top_k: int = 3  # passages per search
    passage_tokens: int = 0  # tokens of each passage, its title included, at most (0 = all)
    max_tokens: int = 4096  # tokens of a question's row, prompt and passages included
    maths_tokens: int = 8192  # tokens of a maths row, prompt included

    def check(self) -> None:
        """ValueError for a limit or a number of rows below 1."""
        if self.rows < 1 or (self.limit is not None and self.limit < 1):
            raise ValueError(f"rows={self.rows} and limit={self.limit} must be at least 1")
