"""The diagnosis of a machine and its links for a run, made without joining: checks, and a verdict for each stage."""
