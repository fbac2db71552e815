"""A run's model, taken out of it: collected from what peers keep, and written in the format everyone uses."""
