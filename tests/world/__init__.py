"""The real daemon in a simulated world: many peers and the operator's node in one process, in virtual time."""
