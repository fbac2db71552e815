"""The network: gRPC, the DHT, relays and bandwidth. Nothing else in `protocol` opens a socket."""
