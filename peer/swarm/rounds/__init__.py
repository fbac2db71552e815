"""The outer rounds of one peer: contributing, waiting, settling, catching up, and the end of a run."""
