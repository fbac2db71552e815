"""Attackers of a testnet: daemons with one thing replaced, and crowds of hostile names."""

ATTACKER = "attacker"
"""The name of an attacker's process; behind a crowd's comes the number of its fault."""

ATTACK = "attack: "
"""The beginning of each `Progress` in which a hostile process says what it does."""
