"""The sizes of a model: the table `model` of the manifest, and sizes by name."""

from typing import Annotated, Any

from pydantic import Field, model_validator

from protocol.toml_tables import Section, filled

PRESETS: dict[str, dict[str, Any]] = {
    name: dict(zip(("layers", "d", "heads", "kv_heads", "ffn", "context", "vocabulary"), sizes, strict=True))
    for name, sizes in {
        "pico": (4, 64, 4, 4, 192, 128, 1024),
        "nano": (4, 128, 4, 4, 384, 128, 2048),
        "mini": (4, 192, 6, 6, 512, 128, 2048),
        "micro": (6, 256, 8, 4, 704, 256, 4096),
        "tiny": (8, 512, 8, 4, 1408, 512, 8192),
        "178m": (9, 1024, 8, 8, 2688, 2048, 32000),
        "512m": (12, 1536, 12, 12, 5440, 2048, 32000),
        "1b": (16, 2048, 8, 8, 8192, 1024, 32000),
    }.items()
}
"""Named sizes of models. 178m, 512m and 1b are the paper's, its Tables 6 and 9, with the two errata that make the
stated parameter counts come out (1B has d = 2048; 512M has an FFN of 5440). The small ones are for one machine."""


class Model(Section):
    """A LLaMA decoder: RoPE, RMSNorm, SwiGLU, untied embeddings. `preset` fills in every size not given."""

    layers: int = Field(ge=1, le=1024)
    d: int = Field(ge=8, le=65536)
    heads: int = Field(ge=1, le=65536)
    kv_heads: int = Field(ge=1, le=65536)
    ffn: int = Field(ge=1, le=2**20)
    context: int = Field(ge=2, le=2**17)
    vocabulary: int = Field(ge=258, le=2**18)
    rope_theta: float = Field(10000.0, gt=1)
    norm_epsilon: float = Field(1e-5, gt=0)
    end_of_text: int = Field(0, ge=0, description="the token behind each text; a checkpoint's tokenizer has its own")

    @model_validator(mode="before")
    @classmethod
    def fill_from_preset(cls, given: Any) -> Any:
        return filled(given, PRESETS)

    @model_validator(mode="after")
    def end_of_text_is_a_token(self) -> "Model":
        if self.end_of_text >= self.vocabulary:
            raise ValueError(f"end_of_text = {self.end_of_text} must be less than vocabulary = {self.vocabulary}")
        return self

    @model_validator(mode="after")
    def heads_divide(self) -> "Model":
        if self.d % (2 * self.heads):
            raise ValueError(f"d = {self.d} must be an even multiple of heads = {self.heads}")
        if self.heads % self.kv_heads:
            raise ValueError(f"heads = {self.heads} must be a multiple of kv_heads = {self.kv_heads}")
        return self

    @property
    def matrix_values(self) -> int:
        """The values of a layer's seven matrices: 2 d² + 2 d q + 3 d F, q the width of keys and of values."""
        return self.d * (2 * self.d + 2 * self.kv_heads * (self.d // self.heads) + 3 * self.ffn)


MOST_NGRAMS = 3
"""The most tokens that choose a row together: nobody has tried more."""

ROWS_OF_SEVERAL = 4
"""The rows of a table for two tokens or more, for each word of the vocabulary: which rows share one, a hash says."""


class NgramTables(Section):
    """The n-gram tables of a model: before each of `layers` a table for the last token, the last two, and so on to the
    last `most`, with rows of `width` numbers. A model with none is a LLaMA."""

    most: int = Field(0, ge=0, le=MOST_NGRAMS)
    width: int = Field(0, ge=0)
    layers: tuple[Annotated[int, Field(ge=1)], ...] = ()

    def rows(self, n: int, vocabulary: int) -> int:
        """The rows of the table for the last n tokens."""
        return vocabulary if n == 1 else ROWS_OF_SEVERAL * vocabulary

    def values(self, vocabulary: int) -> int:
        """The values of the tables before one layer."""
        return self.width * sum(self.rows(n, vocabulary) for n in range(1, self.most + 1))
