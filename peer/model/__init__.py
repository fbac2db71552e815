"""The model: LLaMA in stages, with the subspace between them."""
