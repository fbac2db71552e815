"""Where the dashboard listens."""

import pytest

from bootstrap.dashboard.server import dashboard_port
from protocol.errors import ResourceError, UserError


def test_a_port_alone_is_loopback_and_needs_no_warning():
    with dashboard_port("0") as place:
        assert place.url.startswith("http://127.0.0.1:")
        assert place.listening.getsockname()[0] == "127.0.0.1"
        assert place.warning == ""


@pytest.mark.parametrize("where", ["0.0.0.0:0", "[::]:0"])
def test_who_lets_others_see_it_is_warned(where: str):
    with dashboard_port(where, "train.example.org") as place:
        assert place.warning.startswith("WARNING: whoever can reach")
        assert place.url.startswith("http://127.0.0.1:")  # what a browser here can open
        assert "train.example.org" in place.names


def test_a_port_that_is_taken_is_said_and_what_to_do():
    with dashboard_port("0") as place:
        port = place.listening.getsockname()[1]
        with pytest.raises(ResourceError, match=rf"cannot listen on 127\.0\.0\.1:{port}: .*; try another one"):
            dashboard_port(str(port)).__enter__()


@pytest.mark.parametrize("where", ["", "eighty", "70000", "host:", ":80", "::1:80", "-1"])
def test_what_is_no_port_is_said(where: str):
    with pytest.raises(UserError, match=r"--dashboard takes \[HOST:\]PORT"):
        dashboard_port(where).__enter__()
