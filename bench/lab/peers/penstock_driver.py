"""One side of a pair of Penstock engines, driven through Penstock's own wheel as its users drive it."""

import os
import sys
import time
from pathlib import Path

from common import Memory, Side, serve

import penstock

LABEL = "lab"
# The page that is moved by itself lies here, in both memories.
PAGE = (8192, 64 << 10, 4096)
SETTLE = 0.0003
CONFIG = """
engine: {{directory: {directory}}}
transports: {{allow: [shm]}}
workers: {{progress: {progress}, cores: {cores}}}
"""


class Pool(Memory):
    """An array whose storage is a pool of the engine."""

    def __init__(self, engine, length):
        self.pool = engine.pool(length, label=LABEL, pages="small")
        self.words = self.pool.numpy("uint64")
        self.wipe()


class Penstock(Side):
    def __init__(self, role, progress):
        super().__init__()
        cores = sorted(os.sched_getaffinity(0))
        # As the lab pins its own two sides: the worker that copies on the last core, everybody else on the one before.
        near, far = (cores[-1:], cores[-2:-1]) if len(cores) > 1 else ([], [])
        inline = role == "near" and progress == "inline"
        config = CONFIG.format(
            directory=Path(__file__).parent,
            progress=progress if role == "near" else "adaptive",
            cores=near if role == "near" and not inline else [],
        )
        stay = near if inline else far
        if stay:
            os.sched_setaffinity(0, stay)
        self.role = role
        self.engine = penstock.Engine(role, yaml=config)
        self.peer = None

    def do_version(self):
        return {"version": penstock.version()}

    def allocate(self, length, touch):
        return Pool(self.engine, length)

    def register(self, memory):
        return {"descriptor": self.engine.descriptor().hex()}

    def meet(self, address):
        # The side that moves is the one that connects.
        if self.role == "near":
            self.peer = self.engine.connect(bytes.fromhex(address["descriptor"]), timeout=30)
            self.peer.region(LABEL, timeout=30)

    def do_prepare(self):
        layout = self.layout
        strides = (layout.stride_bytes, layout.stride_bytes)
        shape = {"layers": layout.bases, "block_bytes": layout.block_bytes, "strides": strides}
        plan = self.peer.write_plan
        self.prepared = [plan(self.memory.pool, LABEL, blocks=pairs, **shape) for pairs in layout.pairs]

    def move(self, plan):
        self.peer.submit(plan).wait()

    def do_round(self):
        # The lab's own turns come so soon after another's copy on the same core.
        self.move(self.prepared[self.next - 1])
        time.sleep(SETTLE)
        return super().do_round()

    def do_pages(self, repeats):
        """4 KiB, submitted and waited for, so many times; answers how long one takes."""
        plan = self.peer.write_plan(self.memory.pool, LABEL, extents=[PAGE])
        start = time.perf_counter_ns()
        for _ in range(repeats):
            self.peer.submit(plan).wait()
        return {"ns": (time.perf_counter_ns() - start) / repeats}


if __name__ == "__main__":
    serve(Penstock(*sys.argv[1:3]).functions())
