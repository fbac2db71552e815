"""Golden vectors: what certain values are on the wire, byte for byte. They are a promise to peers of other versions.

    <name>.json    in words and numbers: what the bytes say, of which manifest, signed by which (public!) test keys
    <name>.bin     the bytes

`python -m tests.golden` makes the bytes of descriptions that have none yet, and changes no others.
"""
