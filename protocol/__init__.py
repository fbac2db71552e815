"""What is on the wire and what all peers of a run must agree on. Never imports torch."""
