"""The outer state as rules without I/O: which contributions count, when, and what each replica reads."""
