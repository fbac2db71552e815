"""LLaMA: RMSNorm, rotary positions, grouped-query attention, SwiGLU, untied embeddings."""
