"""One side of a pair of NIXL agents, driven through NIXL's own Python package as its users drive it."""

import sys
import time
from importlib.metadata import version

from common import Memory, Side, serve

import numpy as np
from nixl._api import nixl_agent, nixl_agent_config

DRAM = "DRAM"
HERE = "NIXL_INIT_AGENT"
# The words of a rally lie here, in either memory.
WORD = 8192


def descriptors(base, offsets, length):
    """One row a block: address, length, device. The form that NIXL reads without a Python object a block."""
    rows = np.zeros((len(offsets), 3), dtype=np.uint64)
    rows[:, 0] = np.uint64(base) + offsets
    rows[:, 1] = length
    return rows


class Nixl(Side):
    def __init__(self, name, polled):
        super().__init__()
        self.agent = nixl_agent(name, nixl_agent_config(enable_prog_thread=not polled, backends=["UCX"]))
        self.peer = None
        self.peer_base = None
        self.views = None

    def do_version(self):
        return {"version": version("nixl")}

    def register(self, memory):
        self.agent.register_memory([(memory.base, memory.length, 0, "")], DRAM)
        return {"metadata": self.agent.get_agent_metadata().hex(), "base": memory.base}

    def meet(self, address):
        peer = self.agent.add_remote_agent(bytes.fromhex(address["metadata"]))
        self.peer = peer.decode() if isinstance(peer, bytes) else peer
        self.peer_base = address["base"]

    def prepare(self, local, remote):
        local = self.agent.get_xfer_descs(descriptors(self.memory.base, local, self.layout.block_bytes), DRAM)
        remote = self.agent.get_xfer_descs(descriptors(self.peer_base, remote, self.layout.block_bytes), DRAM)
        return self.agent.initialize_xfer("WRITE", local, remote, self.peer)

    def move(self, transfer):
        state = self.agent.transfer(transfer)
        while state == "PROC":
            state = self.agent.check_xfer_state(transfer)
        if state != "DONE":
            raise RuntimeError(f"a transfer ended as {state}")

    def do_rally(self, rounds, first):
        """8 bytes and a notification over, the same back, so many times. Each side looks at the word it got."""
        here = self.agent.get_xfer_descs(descriptors(self.memory.base, np.array([0], np.uint64), 8), DRAM)
        there = self.agent.get_xfer_descs(descriptors(self.peer_base, np.array([WORD], np.uint64), 8), DRAM)
        transfer = self.agent.initialize_xfer("WRITE", here, there, self.peer, b"word")
        self.memory.words[WORD // 8] = 0
        if not first:
            # The other side begins; it must not before this one can hear it.
            self.agent.send_notif(self.peer, b"ready")
        else:
            self.hear()
        start = time.perf_counter_ns()
        for number in range(1, rounds + 1):
            if not first:
                self.hear_word(number)
            self.memory.words[0] = number
            self.move_word(transfer)
            if first:
                self.hear_word(number)
        taken = time.perf_counter_ns() - start
        self.agent.release_xfer_handle(transfer)
        return {"ns": taken}

    def move_word(self, transfer):
        state = self.agent.transfer(transfer, b"word")
        while state == "PROC":
            state = self.agent.check_xfer_state(transfer)
        if state != "DONE":
            raise RuntimeError(f"a word ended as {state}")

    def hear(self):
        deadline = time.monotonic() + 20
        looks = 0
        while not self.agent.get_new_notifs():
            looks += 1
            if looks % 10_000 == 0 and time.monotonic() > deadline:
                raise TimeoutError("no notification came within 20 s")

    def hear_word(self, number):
        self.hear()
        found = int(self.memory.words[WORD // 8])
        if found != number:
            raise RuntimeError(f"word {number} was announced and {found} is there")

    def do_prep(self):
        """What NIXL needs before a request of the whole layout can be posted, in its two steps."""
        local, remote = self.layout.sets[0]
        local = descriptors(self.memory.base, local, self.layout.block_bytes)
        remote = descriptors(self.peer_base, remote, self.layout.block_bytes)
        indices = np.arange(len(local), dtype=np.int32)
        start = time.perf_counter_ns()
        here = self.agent.prep_xfer_dlist(HERE, local, DRAM)
        there = self.agent.prep_xfer_dlist(self.peer, remote, DRAM)
        prepared = time.perf_counter_ns()
        transfer = self.agent.make_prepped_xfer("WRITE", here, indices, there, indices)
        made = time.perf_counter_ns()
        self.agent.release_xfer_handle(transfer)
        self.agent.release_dlist_handle(here)
        self.agent.release_dlist_handle(there)
        return {"ns": prepared - start, "more_ns": made - prepared}

    def do_views(self, count, view_bytes):
        """An array of which so many parts are going to be registered."""
        array = Memory(count * view_bytes, touch=False)
        rows = [(array.base + index * view_bytes, view_bytes, 0, "") for index in range(count)]
        self.views = (array, rows)

    def do_register(self):
        """Registers all views in one call, which is the quickest that NIXL offers. Taking back is not timed."""
        start = time.perf_counter_ns()
        registered = self.agent.register_memory(self.views[1], DRAM)
        taken = time.perf_counter_ns() - start
        self.agent.deregister_memory(registered)
        return {"ns": taken}

    def do_loops(self, count, views):
        """Registers and takes back so many views, one by one, `count` times; answers the time of one time."""
        start = time.perf_counter_ns()
        for _ in range(count):
            for view in self.views[1][:views]:
                self.agent.deregister_memory(self.agent.register_memory([view], DRAM))
        return {"ns": (time.perf_counter_ns() - start) // count}


if __name__ == "__main__":
    serve(Nixl(sys.argv[1], "polled" in sys.argv[2:]).functions())
