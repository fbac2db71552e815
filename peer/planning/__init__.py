"""How long a round takes on given links and devices, and what it waits for: computed, not measured."""
