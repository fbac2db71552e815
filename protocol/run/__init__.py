"""The files of a run: descriptor, prepared text, tokenizer, and models in Hugging Face's format."""
