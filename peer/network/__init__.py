"""The sockets of a peer. Imports no torch: what it carries are checked bytes."""
