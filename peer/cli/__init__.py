"""The `hetpeer` command."""
