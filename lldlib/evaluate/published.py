"""Published results, as the papers print them; nothing here was measured with this code.

Question answering: exact match, 0 to 1, with Wikipedia 2018 and an E5 retriever (2512.04220v2,
tables 1, 2 and 4; rows marked (S) it takes from Search-R1, 2503.09516). Maths: accuracy in percent,
best score over training (Lp-Reg, 2510.03222v2, table 1). nan: not reported.
"""

from dataclasses import dataclass

QA_TASKS = ("NQ", "TriviaQA", "PopQA", "HotpotQA", "2Wiki", "MuSiQue", "Bamboogle")
QA_COLUMNS = (*QA_TASKS[:3], "Gen-Avg", *QA_TASKS[3:], "MH-Avg", "Avg")
MATHS_TASKS = ("AIME24", "AIME25", "MATH500", "Minerva", "Olympiad")
MATHS_COLUMNS = (*MATHS_TASKS, "Avg")


@dataclass(frozen=True)
class PublishedRow:
    """One row of a paper's table; `values` in the order of the columns."""

    model: str
    method: str
    values: tuple[float, ...]


def _rows(model: str, text: str) -> list[PublishedRow]:
    split = [line.split("|") for line in text.strip().splitlines()]
    return [
        PublishedRow(model, method.strip(), tuple(map(float, values.split())))
        for method, values in split
    ]


QA_ROWS = [
    *_rows(
        "Qwen2.5-3B",
        """
Direct (S)                    | .106 .288 .108 .167 .149 .244 .020 .024 .109 .134
Search-o1 (S)                 | .238 .472 .262 .324 .221 .218 .054 .320 .203 .255
RAG (S)                       | .348 .544 .387 .426 .255 .226 .047 .080 .152 .270
R1-base (S)                   | .226 .455 .173 .285 .201 .268 .055 .224 .187 .229
R1-instruct (S)               | .210 .449 .171 .277 .208 .275 .060 .192 .184 .224
Rejection sampling (S)        | .294 .488 .332 .371 .240 .233 .059 .210 .186 .265
Search-R1-PPO, Base (S)       | .406 .587 .435 .476 .284 .273 .049 .088 .174 .303
Search-R1-PPO, Instruct (S)   | .341 .545 .378 .421 .324 .319 .103 .264 .253 .325
ZeroSearch, Base              | .430 .616 .414 .487 .338 .346 .130 .139 .238 .345
ZeroSearch, Instruct          | .414 .574 .448 .479 .274 .300 .098 .111 .196 .317
StepSearch                    | .296 .490 .341 .375 .294 .360 .140 .258 .263 .311
CriticSearch                  | nan nan nan nan .414 .409 .180 .368 .343 nan
Tree-GRPO                     | .468 .597 .436 .500 .424 .437 .178 .432 .368 .424
Search-R1-GRPO, Base (S)      | .421 .583 .413 .472 .297 .274 .066 .128 .191 .312
GRPO+LLDS, Base               | .479 .627 .453 .520 .345 .323 .082 .210 .240 .360
GRPO+LLDS-MA, Base            | .483 .633 .474 .530 .452 .443 .197 .395 .372 .440
Search-R1-GRPO, Instruct (S)  | .397 .565 .391 .451 .331 .310 .124 .232 .249 .336
GRPO+LLDS, Instruct           | .462 .627 .468 .519 .443 .447 .197 .444 .383 .441
Search-R1-GSPO, Instruct      | .376 .561 .374 .437 .332 .329 .098 .250 .252 .331
GSPO+LLDS, Instruct           | .489 .640 .483 .537 .466 .456 .215 .403 .385 .451
""",
    ),
    *_rows(
        "Qwen2.5-7B",
        """
Direct (S)                    | .134 .408 .140 .227 .183 .250 .031 .120 .146 .181
Search-o1 (S)                 | .151 .443 .131 .242 .187 .176 .062 .296 .180 .206
RAG (S)                       | .349 .585 .392 .442 .299 .235 .058 .208 .200 .304
R1-base (S)                   | .297 .539 .199 .345 .242 .273 .083 .203 .200 .262
R1-instruct (S)               | .270 .537 .199 .335 .237 .292 .072 .293 .224 .271
Rejection sampling (S)        | .360 .592 .380 .444 .331 .296 .123 .355 .276 .348
Search-R1-PPO, Base (S)       | .480 .638 .457 .525 .433 .382 .196 .432 .361 .431
Search-R1-PPO, Instruct (S)   | .393 .610 .397 .467 .370 .414 .146 .368 .325 .385
ZeroSearch, Base              | .424 .664 .604 .564 .320 .340 .180 .333 .293 .409
ZeroSearch, Instruct          | .436 .652 .488 .525 .346 .352 .184 .278 .290 .391
StepSearch                    | .364 .565 .390 .440 .346 .394 .183 .444 .342 .382
CriticSearch                  | nan nan nan nan .442 .428 .194 .472 .384 nan
Tree-GRPO                     | .481 .633 .452 .522 .446 .423 .202 .440 .378 .439
Search-R1-GRPO, Base (S)      | .395 .560 .388 .448 .326 .297 .125 .360 .277 .350
GRPO+LLDS, Base               | .512 .672 .480 .555 .486 .469 .232 .508 .424 .480
Search-R1-GRPO, Instruct (S)  | .429 .623 .427 .493 .386 .346 .162 .400 .324 .396
GRPO+LLDS, Instruct           | .518 .676 .486 .560 .492 .490 .228 .492 .426 .483
""",
    ),
    *_rows(
        "Llama-3.2-3B",
        """
Search-R1-GRPO, Base          | .233 .461 .220 .305 .196 .232 .044 .097 .142 .212
GRPO+LLDS, Base               | .486 .643 .467 .532 .366 .298 .113 .242 .255 .374
GRPO+LLDS-MA, Base            | .493 .640 .480 .538 .449 .462 .164 .298 .343 .427
""",
    ),
]
MATHS_ROWS = [
    *_rows(
        "Qwen2.5-32B",
        """
GRPO, off-policy          | 30.63 22.29 88.00 41.18 54.37 47.29
GSPO, off-policy          | 33.33 22.29 87.60 48.53 55.56 49.46
Clip-Higher, off-policy   | 38.33 29.79 87.60 45.22 56.44 51.48
KL-Cov, off-policy        | 35.62 27.50 87.40 44.49 55.11 50.02
80/20, off-policy         | 38.12 28.75 87.00 45.22 58.37 51.49
Lp-Reg, off-policy        | 37.71 24.58 90.20 40.81 59.70 50.60
GRPO, on-policy           | 28.54 22.50 86.60 44.85 60.30 48.56
GRPO+entropy, on-policy   |  3.75  1.88 60.80 27.94 22.22 23.32
80/20, on-policy          | 32.50 28.54 89.40 45.59 57.63 50.73
Lp-Reg, on-policy         | 38.12 27.08 90.00 46.32 61.19 52.54
""",
    ),
    *_rows(
        "Qwen3-14B-Base",
        """
GRPO, off-policy          | 34.38 27.08 89.20 49.26 55.70 51.13
GSPO, off-policy          | 41.46 34.58 88.60 50.74 59.85 55.05
Clip-Higher, off-policy   | 41.67 32.71 95.00 47.43 64.00 56.16
KL-Cov, off-policy        | 49.17 34.79 93.00 47.43 62.07 57.29
80/20, off-policy         | 43.96 34.58 91.80 48.16 60.89 55.88
Lp-Reg, off-policy        | 46.25 34.17 92.40 48.16 64.44 57.08
GRPO, on-policy           | 46.04 34.38 93.00 48.53 65.19 57.43
GRPO+entropy, on-policy   | 37.29 25.21 88.20 46.32 54.96 50.40
80/20, on-policy          | 47.29 32.50 91.60 50.37 65.78 57.51
Lp-Reg, on-policy         | 50.83 37.92 94.40 49.26 68.44 60.17
""",
    ),
]
