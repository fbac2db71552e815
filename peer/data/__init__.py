"""Which tokens are read, in which order, and from where."""
