"""Many hostile names in one process, without the weight of a daemon each, for `hetpeer testnet --chaos crowd:…`."""
