"""The stages of a pipeline as experts of `hivemind.moe`, each in a process of its own, and the one who calls them."""

import os
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

import torch
from group.processes import say
from group.training import CPU, batch_of, trainer_of

from protocol.manifest import Manifest

STAGES = 4


class Expert(torch.nn.Module):
    """A stage without boundaries; tokens go along, as numbers that have a gradient of zero."""

    def __init__(self, manifest: Manifest, index: int) -> None:
        super().__init__()
        trainer = trainer_of(manifest, index, "datacenter")
        self.first, self.last = trainer.first, trainer.last
        self.stage = trainer.stage
        self.embedding = trainer.embedding

    def forward(self, tokens: torch.Tensor, *entered: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens[:, :-1]) if self.embedding is not None else entered[0]
        out = self.stage(x, tokens[:, :-1])
        if not self.last:
            return out
        return self.stage.lm_head(out, tokens[:, 1:]).expand(len(tokens))  # of each sequence the mean of all


def serve_expert(index: int, manifest: Manifest) -> None:
    """An expert's server until standard input ends."""
    import hivemind
    from hivemind.moe import ModuleBackend, Server
    from hivemind.utils.tensor_descr import BatchTensorDescriptor

    torch.set_num_threads(1)
    tempfile.gettempdir()  # its lock is held when this is first asked; a fork at that moment would wait for it for ever
    length, d = manifest.model.context, manifest.model.d
    tokens = BatchTensorDescriptor(length + 1, dtype=torch.int64)
    entered = [BatchTensorDescriptor(length, d)] if index else []
    left = BatchTensorDescriptor() if index == STAGES - 1 else BatchTensorDescriptor(length, d)
    size = manifest.inner.microbatch
    backend = ModuleBackend(
        f"stage.{index}",
        Expert(manifest, index),
        args_schema=(tokens, *entered),
        outputs_schema=left,
        min_batch_size=size,
        max_batch_size=size,
    )
    dht = hivemind.DHT(start=True, host_maddrs=["/ip4/127.0.0.1/tcp/0"])
    server = Server(dht, {f"stage.{index}": backend}, num_connection_handlers=1, device=CPU, start=True)
    server.ready.wait()
    say([str(each) for each in dht.get_visible_maddrs()])
    sys.stdin.read()
    server.shutdown()
    dht.shutdown()


def drive_experts(manifest: Manifest, addresses: list[list[str]]) -> None:
    """Take a step for each line, in a process of its own: hivemind forks, which does not go well with gRPC."""
    driver = MoeDriver(manifest, addresses)
    say("ready")
    for _ in sys.stdin:
        begun = time.perf_counter()
        loss = driver.step()
        say({"seconds": time.perf_counter() - begun, "processor": 0.0, "loss": loss})
    driver.dht.shutdown()
    os._exit(0)  # its objects complain when the interpreter collects them


class MoeDriver:
    """A caller of the experts, as many microbatches at once as there are stages."""

    def __init__(self, manifest: Manifest, addresses: list[list[str]]) -> None:
        import hivemind
        from hivemind.moe.client.expert import RemoteExpert
        from hivemind.moe.client.remote_expert_worker import RemoteExpertWorker
        from hivemind.moe.expert_uid import ExpertInfo
        from hivemind.p2p import PeerID

        flat = [each for every in addresses for each in every]
        self.dht = hivemind.DHT(start=True, host_maddrs=["/ip4/127.0.0.1/tcp/0"], initial_peers=flat)
        p2p = RemoteExpertWorker.run_coroutine(self.dht.replicate_p2p())
        peers = [PeerID.from_base58(every[0].rsplit("/", 1)[1]) for every in addresses]
        self.experts = [RemoteExpert(ExpertInfo(f"stage.{n}", peer), p2p) for n, peer in enumerate(peers)]
        self.pool = ThreadPoolExecutor(STAGES)
        batches = batch_of(manifest).reshape(-1, manifest.inner.microbatch, manifest.model.context + 1)
        self.batches = torch.from_numpy(batches)

    def step(self) -> float:
        """Gradients of one batch; its loss."""
        losses = list(self.pool.map(self._microbatch, self.batches))
        return sum(losses) / len(losses)

    def _microbatch(self, tokens: torch.Tensor) -> float:
        x = self.experts[0](tokens)
        for expert in self.experts[1:]:
            x = expert(tokens, x)
        loss = x.mean()
        loss.backward()
        return float(loss.item())
