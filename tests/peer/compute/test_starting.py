"""What a peer imports: everything before it can train again after a crash."""

import subprocess
import sys

STEP = """
import sys
import torch
import peer.daemon
from peer.compute.replica import WholeReplica
from tests.peer.compute.test_replica import batches, genesis, manifest
from tests.reference.boundary import orthonormal

run = manifest(2, 4)
replica = WholeReplica(run, "group", orthonormal(32), torch.device("cpu"))
replica.load(genesis(run))
replica.inner_step(batches(run, 1)[0], 0)
replica.moved()
print(*(name for name in ("torch._dynamo", "torch._inductor", "rich") if name in sys.modules))
"""


def test_training_imports_neither_torchs_compiler_nor_what_draws_on_the_screen():
    ran = subprocess.run([sys.executable, "-c", STEP], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == []
