"""A testnet in the harness, from its options to its verdict."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack

from peer.telemetry.terminal import TestnetScreen
from peer.testnet.run import conclude, prepared_folder, run_to_end
from peer.testnet.testnet_options import TestnetOptions
from tests.chaos import namespaces
from tests.chaos.attacked import AttackedTestnet
from tests.chaos.damage import damages
from tests.chaos.faults import ChaosItem, needs_namespaces
from tests.chaos.outcome import MeasuredChaos, cost_tables
from tests.chaos.toll import tolls


async def run_chaos(
    options: TestnetOptions, items: Sequence[ChaosItem], screen: TestnetScreen, stop: asyncio.Event
) -> None:
    """Run a testnet, write its report, and show the outcome, and what faults and crowds cost.

    Raises:
        TestnetError: a process died, a round is missing, states differ, or the loss did not fall.
        ResourceError: `items` need namespaces, and this machine has none for us.
    """
    async with AsyncExitStack() as stack:
        network = await stack.enter_async_context(namespaces.opened()) if needs_namespaces(items) else None
        directory, log = stack.enter_context(prepared_folder(options))
        testnet = AttackedTestnet(options, directory, screen, log, items, namespaces=network)
        await run_to_end(testnet, stop)
    if not items:
        await conclude(testnet, None, stop)
        return
    costs = damages(log.entries, options.rounds, options.inner_steps)
    chaos = MeasuredChaos(costs, testnet.alive, tolls=tolls(log.entries, testnet.crowds.witnessed))
    try:
        await conclude(testnet, chaos, stop)
    finally:
        screen.console.print(cost_tables(chaos))
