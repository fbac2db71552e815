"""A whole swarm on this machine."""
