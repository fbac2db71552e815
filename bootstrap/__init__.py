"""The operator's node: creates the run, admits peers, hands out its files."""
