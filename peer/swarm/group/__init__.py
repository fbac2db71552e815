"""A replica group of volunteers: its leader and members, their inner steps, and who takes a place."""
