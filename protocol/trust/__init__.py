"""Keys, certificates and everything signed: who is in a run, and what can be proved about them."""
