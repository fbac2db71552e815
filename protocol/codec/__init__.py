"""Numbers as bytes: contributions, frames and snapshots, and the formats they are made of."""
