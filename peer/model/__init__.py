"""The model: an architecture in stages, with the subspace between them."""
