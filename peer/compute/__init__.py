"""The work of the torch thread: microbatches of one stage, whole replicas, evaluation."""
