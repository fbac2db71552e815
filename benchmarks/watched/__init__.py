"""Processes around a peer that is watched."""
