"""The laboratory: the swarm's mathematics in one process."""
