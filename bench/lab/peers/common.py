"""What the drivers of all peers share: the talk with the lab, the layout, the memory and its bytes.

The lab sends one JSON object a line; "do" names the function, the rest are its arguments. Each is answered
by one object: what the function gave back, or {"error": words}. The end of the input ends the driver.
"""

import json
import mmap
import os
import sys
import time

import numpy as np

PAGE = 4096
WIPED = 0xA5A5A5A5A5A5A5A5

# The answers' own way out: libraries that log to the standard output must not mix with them.
_answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)


def serve(functions):
    """Answers what the lab asks until it has no more questions."""
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = functions[request.pop("do")](**request)
        except Exception as error:  # Whatever a peer throws is an answer, and the lab's to judge.
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer or {}), file=_answers, flush=True)


class Memory:
    """Ordinary pages of this process, 4 KiB each, as an application allocates them."""

    def __init__(self, length, touch):
        # Untouched memory costs addresses only.
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | (0 if touch else 0x4000)
        self.map = mmap.mmap(-1, length, flags=flags)
        self.map.madvise(mmap.MADV_NOHUGEPAGE)
        self.words = np.frombuffer(self.map, dtype=np.uint64)
        self.base = self.words.ctypes.data
        self.length = length
        if touch:
            self.wipe()

    def wipe(self):
        self.words[:] = WIPED

    def fill(self, seed):
        """Each word follows from its offset: the same pattern as the lab's own pools have."""
        piece = 1 << 20
        for begin in range(0, len(self.words), piece):
            end = min(begin + piece, len(self.words))
            self.words[begin:end] = pattern(seed, np.arange(begin, end, dtype=np.uint64))


def pattern(seed, indices):
    mixed = (indices + np.uint64(seed)) * np.uint64(0x9E3779B97F4A7C15)
    return mixed ^ (mixed >> np.uint64(32))


class Layout:
    """The sets of blocks that the lab has dealt: for each, where its blocks begin on both sides."""

    def __init__(self, seed, block_bytes, stride_bytes, bases, sets):
        self.seed = seed
        self.block_bytes = block_bytes
        self.stride_bytes = stride_bytes
        self.bases = bases
        self.pairs = [np.array(pairs, dtype=np.uint64) for pairs in sets]
        self.sets = []
        local_bases = np.array([base[0] for base in bases], dtype=np.uint64)[:, None]
        remote_bases = np.array([base[1] for base in bases], dtype=np.uint64)[:, None]
        for pairs in self.pairs:
            pairs = pairs * np.uint64(stride_bytes)
            local = (local_bases + pairs[:, 0][None, :]).ravel()
            remote = (remote_bases + pairs[:, 1][None, :]).ravel()
            self.sets.append((local, remote))

    def check(self, memory):
        """Looks at every block of every set in the target's memory; answers how many bytes were right."""
        within = np.arange(self.block_bytes // 8, dtype=np.uint64)
        looked = 0
        for local, remote in self.sets:
            for begin in range(0, len(local), 1000):
                sources = (local[begin : begin + 1000] // np.uint64(8))[:, None] + within
                places = (remote[begin : begin + 1000] // np.uint64(8))[:, None] + within
                expected, found = pattern(self.seed, sources), memory.words[places]
                if not np.array_equal(expected, found):
                    row, column = np.argwhere(expected != found)[0]
                    return {
                        "wrong": {
                            "offset": int(places[row, column]) * 8,
                            "source": int(sources[row, column]) * 8,
                            "expected": int(expected[row, column]),
                            "found": int(found[row, column]),
                        }
                    }
                looked += expected.nbytes
        return {"bytes": looked}


class Side:
    """One process of a pair: what every driver can do, whatever moves its bytes.

    A driver derives from it and says how: `register`, `meet`, `prepare`, `move`; and `allocate`, where the memory
    is its peer's.
    """

    def __init__(self):
        self.memory = None
        self.layout = None
        self.prepared = []
        self.next = 0

    def functions(self):
        names = [name for name in dir(self) if name.startswith("do_")]
        return {name.removeprefix("do_"): getattr(self, name) for name in names}

    def do_open(self, length, touch=True):
        """Makes the memory and registers it; answers how the other side reaches it."""
        self.memory = self.allocate(length, touch)
        return {"address": self.register(self.memory)}

    def allocate(self, length, touch):
        return Memory(length, touch)

    def do_meet(self, address):
        self.meet(address)

    def do_deal(self, **layout):
        self.layout = Layout(**layout)

    def do_fill(self):
        self.memory.fill(self.layout.seed)

    def do_wipe(self):
        self.memory.wipe()

    def do_prepare(self):
        """Everything that can be made before the bytes move, for every set; none of it is timed."""
        self.prepared = [self.prepare(local, remote) for local, remote in self.layout.sets]

    def do_round(self):
        """Moves the next set; answers how long that took, from the call to its end, in nanoseconds."""
        prepared = self.prepared[self.next]
        self.next = (self.next + 1) % len(self.prepared)
        start = time.perf_counter_ns()
        self.move(prepared)
        return {"ns": time.perf_counter_ns() - start}

    def do_all(self):
        """Moves every set once."""
        for prepared in self.prepared:
            self.move(prepared)

    def do_check(self):
        return self.layout.check(self.memory)

    def do_spoil(self):
        """Changes one byte that has arrived: proof that the look finds it."""
        place = int(self.layout.sets[-1][1][-1]) // 8
        self.memory.words[place] ^= np.uint64(1)

    def do_cpu(self):
        return {"ns": time.process_time_ns()}
