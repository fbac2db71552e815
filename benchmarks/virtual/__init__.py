"""A swarm in virtual time: an event queue, links with rates, and the daemon's own decisions on top of them."""
