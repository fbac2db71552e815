"""The swarm of peers: groups form, inner steps run, outer rounds end."""
