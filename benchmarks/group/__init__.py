"""A replica group for a benchmark: a process for each stage, connected as the daemon connects them, without a run."""
