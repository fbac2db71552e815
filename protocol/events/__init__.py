"""The events of a daemon, as values: each class declares its fields, words, level and where it goes."""
