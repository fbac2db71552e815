"""The harness that breaks a testnet, run as `python -m tests.chaos`: processes, links (as root), attackers, crowds."""
