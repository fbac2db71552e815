"""How peers become a swarm: groups form, inner steps run, outer rounds end."""
