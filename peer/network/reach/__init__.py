"""How a peer is reached that cannot be dialled: what others see of it, relays, and routes."""
