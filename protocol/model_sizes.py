"""The sizes of a model: what the manifest's table `model` has for every architecture, and those of n-gram tables."""

from typing import Annotated, Any

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from protocol.toml_tables import Section

MOST_CONTEXT = 2**17
"""The longest context of a run."""

USUAL_ARCHITECTURE = "llama"
"""The architecture of a manifest that names none."""


class Model(Section):
    """The sizes that every architecture has; each adds its own (`protocol.architectures`)."""

    architecture: str = Field(USUAL_ARCHITECTURE, description="a folder of `protocol/architectures`")
    layers: int = Field(ge=1, le=1024)
    d: int = Field(ge=8, le=65536)
    context: int = Field(ge=2, le=MOST_CONTEXT)
    vocabulary: int = Field(ge=258, le=2**18)
    end_of_text: int = Field(0, ge=0, description="the token behind each text; a checkpoint's tokenizer has its own")

    @model_validator(mode="after")
    def end_of_text_is_a_token(self) -> "Model":
        if self.end_of_text >= self.vocabulary:
            raise ValueError(f"end_of_text = {self.end_of_text} must be less than vocabulary = {self.vocabulary}")
        return self

    @model_serializer(mode="wrap")
    def leave_out_the_usual(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """The table in canonical form: runs that began before there were architectures keep their ids."""
        fields: dict[str, Any] = dump(self)
        if self.architecture == USUAL_ARCHITECTURE:
            del fields["architecture"]
        return fields


MOST_NGRAMS = 3
"""The most tokens that choose a row together: nobody has tried more."""

ROWS_OF_SEVERAL = 4
"""The rows of a table for two tokens or more, for each word of the vocabulary: which rows share one, a hash says."""


class NgramTables(Section):
    """The n-gram tables of a model: before each of `layers` a table for the last token, the last two, and so on to the
    last `most`, with rows of `width` numbers. Most models have none."""

    most: int = Field(0, ge=0, le=MOST_NGRAMS)
    width: int = Field(0, ge=0)
    layers: tuple[Annotated[int, Field(ge=1)], ...] = ()

    def rows(self, n: int, vocabulary: int) -> int:
        """The rows of the table for the last n tokens."""
        return vocabulary if n == 1 else ROWS_OF_SEVERAL * vocabulary

    def values(self, vocabulary: int) -> int:
        """The values of the tables before one layer."""
        return self.width * sum(self.rows(n, vocabulary) for n in range(1, self.most + 1))
