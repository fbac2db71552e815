"""Orders and answers, and tensors in memory that processes share."""

import os
from multiprocessing import Pipe

import torch

from peer.devices.messages import (
    Answer,
    Order,
    answer,
    hear,
    layout_of,
    receive_order,
    send_order,
    shared_parcel,
    unpack_tensors,
)

LAYOUT = {"some": ("float32", (3, 5)), "scalar": ("float32", ()), "whole": ("int64", (7,))}


def test_what_one_writes_the_other_reads_and_back():
    with shared_parcel(LAYOUT) as parcel:
        theirs = unpack_tensors(parcel.handle, LAYOUT)
    parcel.tensors["whole"].copy_(torch.arange(7))
    theirs["some"][1].fill_(2.5)
    theirs["scalar"].fill_(-1)
    assert theirs["whole"].tolist() == list(range(7))
    assert parcel.tensors["some"].tolist() == [[0] * 5, [2.5] * 5, [0] * 5]
    assert parcel.tensors["scalar"].item() == -1
    assert layout_of(parcel.tensors) == LAYOUT


def test_an_order_takes_its_tensors_along_and_leaves_no_file_open():
    ours, theirs = Pipe()
    with ours, theirs:
        before = len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else 0
        with shared_parcel(LAYOUT) as parcel:
            parcel.tensors["some"].fill_(1.5)
            send_order(ours, Order("step", LAYOUT, 7), parcel, os.getpid())
            order, tensors = receive_order(theirs)
        assert order == Order("step", LAYOUT, 7)
        assert tensors["some"].unique().tolist() == [1.5]
        tensors["scalar"].fill_(4)
        assert parcel.tensors["scalar"].item() == 4
        said = Answer((1.5, 2.0), {"weights": 3}, "why", "diverged")
        answer(theirs, said)
        assert hear(ours) == said
        after = len(os.listdir("/proc/self/fd")) if before else 0
        assert after - before <= 2  # each mapping keeps a descriptor of its own until its tensors are gone
