"""What `benchmarks/device.py` compares: the trainer, and those that know nothing of hetpeer."""
