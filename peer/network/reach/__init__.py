"""Reach: how a peer is reached that cannot be dialled, by what others see of it, relays, and routes."""
