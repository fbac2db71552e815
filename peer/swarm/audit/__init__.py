"""Audits and trials: what contributions did to the held-out loss, and what follows from it."""
