"""The protocol of the outer state in virtual time: no sockets, no threads, no sleeping; one seed, one story."""
