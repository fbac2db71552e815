"""Text of anybody's, made into shards of tokens: read, tokenized, shuffled, written."""
