"""The protocol: messages, and the rules that all peers of a run must agree on. Never imports torch."""
