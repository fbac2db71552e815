"""Attackers of a testnet, for `--chaos`: daemons with one thing replaced, and crowds of hostile names."""
