"""The architectures that a run can train, each in a folder of its own. Of such a folder the module `layer` alone needs
torch, and only `peer` loads it: the node, which computes nothing, needs the rest."""
