"""Make the bytes of new golden vectors. Those that are there stay as they are."""

import sys

from tests.golden.vectors import FOLDER, Vector, encode


def main() -> int:
    """0 if all bytes are what the code makes; 1 if some are not, which is for a person to decide."""
    broken = []
    for path in sorted(FOLDER.glob("*.json")):
        vector = Vector.read(path.stem)
        fresh = encode(vector)
        if not vector.file.exists():
            vector.file.write_bytes(fresh)
            print(f"{vector.file.name}: made, {len(fresh)} bytes")
        elif vector.file.read_bytes() != fresh:
            broken.append(vector.file.name)
    if broken:
        print(
            f"{', '.join(broken)}: the code makes other bytes than were promised. They are not overwritten: mend the "
            "code; or raise the format's version, and remove the old files yourself.",
            file=sys.stderr,
        )
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
