"""A page for people on the state of the run, served by the operator's node."""
