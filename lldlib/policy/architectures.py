"""Sizes of the models that the project speaks of, so that nothing is downloaded to plan a run."""

from dataclasses import dataclass

from transformers import (
    AutoConfig,
    LlamaConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from lldlib.config import data_dir


@dataclass(frozen=True)
class Listed:
    """The numbers of a model's configuration that its memory depends on."""

    kind: type[PretrainedConfig]
    width: int  # hidden size
    inner: int  # intermediate size of the MLP
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    tied: bool  # head and embedding are one matrix
    parameters: int  # as counted on the published weights

    def config(self) -> PretrainedConfig:
        """The transformers configuration with these sizes."""
        return self.kind(
            hidden_size=self.width,
            intermediate_size=self.inner,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            head_dim=self.head_size,
            vocab_size=self.vocabulary,
            tie_word_embeddings=self.tied,
        )


_SIZES = {
    "Qwen/Qwen2.5-0.5B": Listed(Qwen2Config, 896, 4864, 24, 14, 2, 64, 151_936, True, 494_032_768),
    "Qwen/Qwen2.5-1.5B": Listed(
        Qwen2Config, 1536, 8960, 28, 12, 2, 128, 151_936, True, 1_543_714_304
    ),
    "Qwen/Qwen2.5-3B": Listed(
        Qwen2Config, 2048, 11_008, 36, 16, 2, 128, 151_936, True, 3_085_938_688
    ),
    "Qwen/Qwen2.5-7B": Listed(
        Qwen2Config, 3584, 18_944, 28, 28, 4, 128, 152_064, False, 7_615_616_512
    ),
    "Qwen/Qwen3-14B-Base": Listed(
        Qwen3Config, 5120, 17_408, 40, 40, 8, 128, 151_936, False, 14_768_307_200
    ),
    "meta-llama/Llama-3.2-1B": Listed(
        LlamaConfig, 2048, 8192, 16, 32, 8, 64, 128_256, True, 1_235_814_400
    ),
    "meta-llama/Llama-3.2-3B": Listed(
        LlamaConfig, 3072, 8192, 28, 24, 8, 128, 128_256, True, 3_212_749_824
    ),
    "smollm2": Listed(LlamaConfig, 576, 1536, 30, 9, 3, 64, 49_152, True, 134_515_008),
}
LISTED = _SIZES | {
    f"{name}-Instruct": _SIZES[name] for name in _SIZES if "2.5-" in name or "3.2-" in name
}


def configuration(name_or_path: str) -> PretrainedConfig:
    """The configuration of a policy; of a listed model from the table, without any download.

    Raises ValueError for a name or folder that transformers does not find.
    """
    if name_or_path in LISTED:
        return LISTED[name_or_path].config()
    path = str(data_dir() / "tiny") if name_or_path == "tiny" else name_or_path
    try:
        return AutoConfig.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"no configuration of {name_or_path!r}: give a folder, a name on Hugging Face, or one "
            f"of {', '.join(LISTED)}"
        ) from error
