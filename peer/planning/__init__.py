"""The duration of a round on given links and devices, and its bottleneck: computed, not measured."""
