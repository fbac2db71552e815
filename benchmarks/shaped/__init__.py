"""Hosts in network namespaces, on links with a rate and a delay."""
