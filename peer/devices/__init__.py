"""A datacenter replica on several devices: processes that compute, and the one that tells them what."""
