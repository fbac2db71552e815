"""`python -m tests.reference.self_portrait CODE [fork]` tells what it is, waits for the end of its standard input, and
ends with this code; with `fork` it first begins another that does the same, and shows what that one told."""

import json
import os
import resource
import signal
import sys

from tests.reference.forks import ask, parent


def main() -> None:
    code, *fork = sys.argv[1:]
    print(
        json.dumps(
            {
                "pid": os.getpid(),
                "parent": os.getppid(),
                "session": os.getsid(0),
                "folder": os.getcwd(),
                "files": resource.getrlimit(resource.RLIMIT_NOFILE),
                "word": os.environ.get("HETPEER_WORD"),
                "imported": "torch" in sys.modules,
                "ctrl_c": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
            }
        ),
        flush=True,
    )
    if fork:
        with ask(parent(), [sys.executable, "-m", "tests.reference.self_portrait", "0"], (0, 1, 2), {}) as news:
            news.recv(64)
            news.recv(64)
    sys.stdin.read()
    print("ends", file=sys.stderr)
    sys.exit(int(code))


if __name__ == "__main__":
    main()
