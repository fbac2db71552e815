"""Orders and answers, and tensors in memory that processes share."""

import os
from multiprocessing import Pipe

import torch

from peer.devices.messages import (
    Answer,
    Order,
    layout_of,
    receive_answer,
    receive_order,
    send_answer,
    send_order,
    shared_tensors,
    unpack_tensors,
)

LAYOUT = {"some": ("float32", (3, 5)), "scalar": ("float32", ()), "whole": ("int64", (7,))}


def test_what_one_writes_the_other_reads_and_back():
    with shared_tensors(LAYOUT) as shared:
        theirs = unpack_tensors(shared.handle, LAYOUT)
    shared.tensors["whole"].copy_(torch.arange(7))
    theirs["some"][1].fill_(2.5)
    theirs["scalar"].fill_(-1)
    assert theirs["whole"].tolist() == list(range(7))
    assert shared.tensors["some"].tolist() == [[0] * 5, [2.5] * 5, [0] * 5]
    assert shared.tensors["scalar"].item() == -1
    assert layout_of(shared.tensors) == LAYOUT


def test_an_order_takes_its_tensors_along_and_leaves_no_file_open():
    ours, theirs = Pipe()
    with ours, theirs:
        before = len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else 0
        with shared_tensors(LAYOUT) as shared:
            shared.tensors["some"].fill_(1.5)
            send_order(ours, Order("step", LAYOUT, 7), shared, os.getpid())
            order, tensors = receive_order(theirs)
        assert order == Order("step", LAYOUT, 7)
        assert tensors["some"].unique().tolist() == [1.5]
        tensors["scalar"].fill_(4)
        assert shared.tensors["scalar"].item() == 4
        said = Answer((1.5, 2.0), {"weights": 3}, "why", "diverged")
        send_answer(theirs, said)
        assert receive_answer(ours) == said
        after = len(os.listdir("/proc/self/fd")) if before else 0
        assert after - before <= 2  # each mapping keeps a descriptor of its own until its tensors are gone
