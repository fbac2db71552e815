"""Ports are looked at before anything long begins."""

import socket

import pytest

from protocol.errors import ResourceError
from protocol.net.ports import require_free


def free_three() -> int:
    """The first of three neighbouring ports that are free now."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as first:
            port = first.getsockname()[1]
        try:
            require_free("127.0.0.1", port, 3)
        except (ResourceError, OverflowError):
            continue
        return port


@pytest.mark.parametrize("taken", [0, 1, 2])
def test_the_port_that_is_taken_is_named_with_those_that_the_option_takes(taken: int):
    port = free_three()
    with socket.create_server(("127.0.0.1", port + taken)):
        with pytest.raises(
            ResourceError, match=f"on 127.0.0.1:{port + taken}: the port is taken; --listen 127.0.0.1:{port} "
        ):
            require_free("127.0.0.1", port, 3)
        require_free("127.0.0.1", port, taken)
    require_free("127.0.0.1", port, 3)


def test_an_address_of_another_machine_is_refused_and_any_port_is_free():
    with pytest.raises(ResourceError, match=r"cannot listen on 192\.0\.2\.1:7700: "):
        require_free("192.0.2.1", 7700, 1)
    require_free("127.0.0.1", 0, 3)
