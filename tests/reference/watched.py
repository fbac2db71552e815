"""An operator's node as peers that tell meet it: its port for peers, on a real socket."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc

from bootstrap.monitor.watch import Monitor, MonitorService
from protocol.identity import PeerId, RunId
from protocol.net.channels import listen, options
from protocol.net.guard import Guard
from protocol.net.lenient import AnyBytes
from protocol.schemas import monitor_pb2_grpc
from tests.reference.admitted import There, credentials, there
from tests.reference.small_manifest import small_manifest

MANIFEST = small_manifest()
RUN = RunId("ab" * 32)


@dataclass
class Watched:
    """A node called `node`, whom it objects to, and where it is."""

    monitor: Monitor = field(default_factory=lambda: Monitor.of(MANIFEST, RUN))
    objections: dict[PeerId, str] = field(default_factory=dict)
    at: There | None = None

    @asynccontextmanager
    async def serving(self, port: int = 0) -> AsyncIterator[There]:
        """Up, as long as the block lasts."""

        def objection(peer: PeerId) -> str:
            return self.objections.get(peer, "")

        server = grpc.aio.server(options=options(MANIFEST), interceptors=[Guard(objection), AnyBytes()])
        service = MonitorService(MANIFEST, self.monitor, objection)
        monitor_pb2_grpc.add_MonitorServicer_to_server(service, server)
        self.at = there("node", f"127.0.0.1:{listen(server, f'127.0.0.1:{port}', credentials('node').serving())}")
        await server.start()
        try:
            yield self.at
        finally:
            service.hang_up()
            await server.stop(60.0)  # no call is left

    async def until(self, holds: object) -> None:
        """Until a condition holds of what is known; `holds` takes nothing."""
        assert callable(holds)
        while not holds():
            await self.monitor.until_changed(5.0)
