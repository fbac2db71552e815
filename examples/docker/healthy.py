"""The image's health check: hetpeer listens at the port that every command here gives it with --listen.

Before a peer has its place, and while it pauses, it listens nowhere: then it is not healthy.
"""

import socket
import sys

PORT = 7700

try:
    socket.create_connection(("127.0.0.1", PORT), timeout=3).close()
except OSError as error:
    sys.exit(f"nothing answers at port {PORT}: {error}")
