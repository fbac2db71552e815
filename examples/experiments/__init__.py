"""Experiments: grids of runs of the lab, with tables and figures; `python -m examples.experiments --help`."""
