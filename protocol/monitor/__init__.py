"""What peers tell an operator's node, and the view of a run that follows from it."""
