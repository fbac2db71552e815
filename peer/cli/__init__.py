"""The `hetpeer` command: a module for each family of commands, options and body together."""


def main() -> None:
    """Run the command line of this process; what is installed as `hetpeer` calls this."""
    from peer.cli.__main__ import main as run

    run()
