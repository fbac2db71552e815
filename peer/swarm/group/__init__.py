"""A replica group of volunteers: who takes which seat, how they agree on a round, and their inner steps."""
