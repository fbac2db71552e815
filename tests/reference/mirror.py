"""A mirror on loopback: a real HTTP server that knows ranges, and, if it is told to, errs, stalls or lies."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal

Fault = Literal["wrong bytes", "short", "long", "whole file", "stall", "error", "other range", "hang up", "gone"]


@dataclass(slots=True)
class Mirror:
    """`fault` and `away` may be changed at any time. `asked` has the ranges that were asked for, as (file, first,
    last), `paths` every request."""

    folder: Path
    url: str = ""
    fault: Fault | None = None
    away: str = ""
    """Where what is under /away/ is."""
    paths: list[str] = field(default_factory=list)
    asked: list[tuple[str, int, int]] = field(default_factory=list)
    closing: threading.Event = field(default_factory=threading.Event)


@contextmanager
def mirror(folder: Path, fault: Fault | None = None) -> Iterator[Mirror]:
    """Serve a folder until the end of the block."""
    served = Mirror(folder, fault=fault)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            answer(served, self)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        served.url = f"http://127.0.0.1:{server.server_address[1]}/text"
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield served
        finally:
            served.closing.set()
            server.shutdown()
            thread.join()


def answer(served: Mirror, request: BaseHTTPRequestHandler) -> None:
    """Header and body go in one write: two would wait 40 ms for the acknowledgement of the first. What is under
    /moved/ is under /text/, and what is under /loop/ nowhere."""
    served.paths.append(request.path)
    folder, name = request.path.partition("?")[0].strip("/").split("/")
    if folder != "text":
        there = {"moved": f"/text/{name}", "away": served.away}.get(folder, f"/loop/{name}")
        return _write(request, "302 Found", {"Location": there}, b"")
    asked = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("Range", ""))
    path = served.folder / name
    if not path.exists() or served.fault == "gone":
        return _write(request, "404 Not Found", {}, b"")
    data = path.read_bytes()
    if asked is None:
        return _write(request, "200 OK", {}, data)
    first, last = int(asked[1]), min(int(asked[2]), len(data) - 1)
    served.asked.append((name, first, last))
    body = data[first : last + 1]
    given = {"Content-Range": f"bytes {first}-{last}/{len(data)}"}
    match served.fault:
        case "wrong bytes":
            body = bytes([body[0] ^ 1]) + body[1:]
        case "short":
            body = body[:-2]
        case "long":
            body += b"\0\0"
        case "whole file":
            return _write(request, "200 OK", {}, data)
        case "error":
            return _write(request, "503 Service Unavailable", {}, b"busy")
        case "other range":
            given = {"Content-Range": f"bytes {first + 2}-{last + 2}/{len(data)}"}
        case "stall":
            return _write(request, "206 Partial Content", given, body, until=served.closing)
        case "hang up":
            request.close_connection = True
            return _write(request, "206 Partial Content", given, body[: len(body) // 2], len(body))
    return _write(request, "206 Partial Content", given, body)


def _write(
    request: BaseHTTPRequestHandler,
    status: str,
    headers: dict[str, str],
    body: bytes,
    length: int | None = None,
    until: threading.Event | None = None,
) -> None:
    lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in headers.items())]
    head = "\r\n".join([*lines, f"Content-Length: {len(body) if length is None else length}", "", ""]).encode()
    if until is not None:
        request.wfile.write(head + body[: len(body) // 2])
        until.wait()
        request.close_connection = True
        return
    request.wfile.write(head + body)
