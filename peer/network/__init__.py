"""Sockets. Imports no torch: what it carries are checked bytes."""
