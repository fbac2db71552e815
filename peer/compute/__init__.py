"""What the torch thread does: microbatches of one stage, whole replicas, evaluation."""
