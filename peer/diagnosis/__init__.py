"""What a machine and its links would be to a run, found out without joining: checks, and a verdict for each stage."""
