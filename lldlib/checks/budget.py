"""Exercises of notebook 15: what a run costs in memory and in tokens."""

from lldlib.checks.grading import Case, Function, Verdict, grade


def check_cache_bytes(function: Function) -> Verdict:
    """`function(layers, kv_heads, head_size, tokens, rows, item)`: bytes of the key-value cache."""
    return grade(
        function,
        [
            Case((1, 1, 1, 1, 1, 1), 2, "One key and one value: two numbers."),
            Case((2, 2, 64, 10, 1, 2), 10_240, "2 * layers * kv_heads * head_size * tokens."),
            Case((36, 2, 128, 2048, 40, 2), 3_019_898_880, "Every row has a cache of its own."),
        ],
    )


def check_lora_parameters(function: Function) -> Verdict:
    """`function(rank, shapes)`: numbers that LoRA adds to linear layers of shapes (in, out)."""
    return grade(
        function,
        [
            Case((8, [(10, 20)]), 240, "A is rank x in, B is out x rank."),
            Case((16, [(2048, 2048), (2048, 256)]), 102_400, "Sum over the layers."),
            Case((4, []), 0, "No layer, no adapter."),
        ],
    )
