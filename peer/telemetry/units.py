"""Bytes, seconds and counts in words. Pure."""


def size(count: float) -> str:
    """Bytes in words: "999 B", "1.5 kB", "2.5 MB", "3.0 GB"."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def so_many(count: int, what: str) -> str:
    """A number of things: "1 peer", "2 peers"."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def clock(seconds: float) -> str:
    """Minutes and seconds: "0:42", "90:00"."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def since(seconds: float) -> str:
    """Hours, minutes and seconds: "1:01", "25:01:01"."""
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def tail(peer: str) -> str:
    """The end of a peer id, as people see it."""
    return peer[-8:]


def tails(peers: list[str]) -> str:
    """The ends of several peer ids, with commas."""
    return ", ".join(map(tail, peers))
