"""Everything that lies on a peer's disk."""
