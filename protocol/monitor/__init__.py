"""The telemetry that peers send to an operator's node, and the view of a run that follows from it."""
