"""The tokens that are read, their order, and where they come from."""
