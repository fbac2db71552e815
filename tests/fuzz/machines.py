"""What the machines of a datacenter say to each other."""

import json
from dataclasses import asdict

from peer.devices.machines import Hello, Welcome, pack_hello, read_hello, read_welcome
from peer.devices.messages import Begin, Order, encoded, read_order
from tests.fuzz.reader import Reader

HELLO = Hello(2, 1, "cpu", "ab" * 32, 1, "1.2.3", "2.3.4")
WELCOME = Welcome("--nproc is 1 on the first machine and 2 here", final=True)
BEGIN = Order("begin", begin=Begin("{}", 2, "cpu", "", 1, 0, 60.0, store="127.0.0.1:1"))
STEP = Order("step", {"batch": ("int64", (4, 17))}, 3)

MACHINES = (
    Reader("hello of a machine", read_hello, ((pack_hello(HELLO), HELLO),), "json"),
    Reader("welcome of a machine", read_welcome, ((json.dumps(asdict(WELCOME)).encode(), WELCOME),), "json"),
    Reader("order to a machine", read_order, ((encoded(BEGIN), BEGIN), (encoded(STEP), STEP)), "json"),
)
