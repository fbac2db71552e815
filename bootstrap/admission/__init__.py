"""Registration at the operator's node: who is let in, with which place, certificate and limits."""
