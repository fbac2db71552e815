"""The volunteer, the datacenter replica, the laboratory, and the `hetpeer` command."""
