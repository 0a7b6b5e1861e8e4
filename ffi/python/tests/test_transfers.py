"""Two processes: blocks, notifications, counters, cancel, and what becomes of a peer that dies or stops.

Run as a program this is the other process: it owns memory, and does what is written to its standard input.
"""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from typing import Self

import penstock

BLOCK = 4096
BLOCKS = 64


def configuration(transport: str, folder: str) -> str:
    listen = 'session: {listen: ["127.0.0.1:0"]}\n' if transport != "shm" else ""
    return f"engine: {{directory: {folder}}}\ntransports: {{allow: [{transport}]}}\n{listen}"


def owner(transport: str, folder: str) -> None:
    with penstock.Engine("owner", yaml=configuration(transport, folder)) as engine:
        pool = engine.pool(BLOCK * BLOCKS, block=BLOCK, label="kv")
        counter = pool.counter("layers")
        print(engine.descriptor().hex(), flush=True)
        for line in sys.stdin:
            word, *numbers = line.split()
            if word == "count":
                print(counter.wait(int(numbers[0]), timeout=10), counter.value, flush=True)
            elif word == "byte":
                print(memoryview(pool)[int(numbers[0])], flush=True)
            elif word == "note":
                engine.wait_notification(timeout=10)
                print(*[(note.peer, note.id, note.payload) for note in engine.notifications()], flush=True)
            elif word == "tell":
                [peer] = engine.peers
                peer.notify(int(numbers[0]), b"from the owner").wait(10)
                print("told", flush=True)


class Owner:
    """The other process, which ends with its `with` block."""

    def __init__(self, transport: str, folder: str) -> None:
        command = [sys.executable, __file__, transport, folder]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.descriptor = bytes.fromhex(self.hear())

    def hear(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def ask(self, what: str) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        return self.hear()

    def stop(self) -> None:
        """Stops it, and waits until each of its threads has: a signal takes its time."""
        os.kill(self.process.pid, signal.SIGSTOP)
        tasks = pathlib.Path(f"/proc/{self.process.pid}/task")
        limit = time.monotonic() + 5
        while any(") T " not in (task / "stat").read_text() for task in tasks.iterdir()):
            assert time.monotonic() < limit
            time.sleep(0.001)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.process.kill()
        self.process.communicate()


class TwoProcesses(unittest.TestCase):
    def each(self, body, transports=("shm", "tcp")) -> None:  # type: ignore[no-untyped-def]
        for transport in transports:
            with self.subTest(transport), tempfile.TemporaryDirectory() as folder:
                with Owner(transport, folder) as other:
                    with penstock.Engine("user", yaml=configuration(transport, folder)) as engine:
                        peer = engine.connect(other.descriptor)
                        self.assertEqual((peer.name, peer.transport), ("owner", transport))
                        body(engine, peer, other)

    def test_packets_are_counted_where_there_are_any(self) -> None:
        def body(engine: penstock.Engine, peer: penstock.Peer, other: Owner) -> None:
            mine = engine.pool(BLOCK * BLOCKS, block=BLOCK)
            peer.submit(peer.write_plan(mine, "kv", blocks=[(0, 1)])).wait(10)
            counts, of_peer = engine.packet_statistics(), peer.packet_statistics()
            self.assertEqual(of_peer.keys() - counts.keys(), {"round_trip_ns", "window_bytes"})
            if peer.transport == "datagram":
                self.assertGreater(min(of_peer[name] for name in ("sent", "received", "round_trip_ns", "window_bytes")), 0)
                again = engine.packet_statistics()
                self.assertGreaterEqual(again["sent"], of_peer["sent"])
            else:
                self.assertEqual(set((counts | of_peer).values()), {0})
            peer.disconnect()
            with self.assertRaises(penstock.PeerClosed):
                peer.packet_statistics()

        self.each(body, ("shm", "tcp", "datagram"))

    def test_blocks_go_there_and_back(self) -> None:
        def body(engine: penstock.Engine, peer: penstock.Peer, other: Owner) -> None:
            mine = engine.pool(BLOCK * BLOCKS, block=BLOCK)
            blocks = mine.take(8)
            for place, index in enumerate(blocks.indices):
                blocks[place][:] = bytes([index + 1]) * BLOCK
            counter = peer.counter("layers", timeout=10)
            pairs = [(index, BLOCKS - 1 - index) for index in blocks.indices]
            plan = peer.write_plan(mine, peer.region("kv", timeout=10), blocks=pairs, keep=[blocks])
            self.assertEqual(plan.bytes, 8 * BLOCK)
            end = peer.submit(plan, notify=(1 << 63, b"layer"), counter=counter).wait(10)
            self.assertEqual((end.bytes, end.notified), (8 * BLOCK, "yes"))
            self.assertEqual(other.ask("count 1"), "True 1")
            self.assertEqual(other.ask("note"), str(("user", 1 << 63, b"layer")))
            for index, there in pairs:
                self.assertEqual(other.ask(f"byte {there * BLOCK + BLOCK - 1}"), str(index + 1))
            back = peer.read_plan(mine, "kv", extents=[((BLOCKS - 1) * BLOCK, (BLOCKS - 1) * BLOCK, BLOCK)])
            peer.submit(back).wait(10)
            self.assertEqual(bytes(memoryview(mine)[-BLOCK:]), b"\x01" * BLOCK)

        self.each(body)

    def test_a_notification_comes_back(self) -> None:
        def body(engine: penstock.Engine, peer: penstock.Peer, other: Owner) -> None:
            self.assertFalse(engine.wait_notification(timeout=0))
            peer.notify(3, b"hello").wait(10)
            self.assertEqual(other.ask("note"), str(("user", 3, b"hello")))
            self.assertEqual(other.ask("tell 9"), "told")
            self.assertTrue(engine.wait_notification(timeout=10))
            [note] = engine.notifications()
            self.assertEqual((note.peer, note.id, note.payload), ("owner", 9, b"from the owner"))

        self.each(body)

    def test_a_killed_peer_is_an_exception(self) -> None:
        def body(engine: penstock.Engine, peer: penstock.Peer, other: Owner) -> None:
            mine = engine.pool(BLOCK * BLOCKS, block=BLOCK)
            plan = peer.write_plan(mine, peer.region("kv", timeout=10), blocks=[(0, 0)])
            os.kill(other.process.pid, signal.SIGKILL)
            limit = time.monotonic() + 10
            while peer.ended is None and time.monotonic() < limit:
                time.sleep(0.01)
            self.assertIsInstance(peer.ended, penstock.PeerLost)
            with self.assertRaises(penstock.PeerLost) as raised:
                peer.submit(plan).wait(10)
            self.assertEqual(raised.exception.peer, "owner")
            self.assertIn("connect again", raised.exception.remedy or "")

        self.each(body)

    def test_a_stopped_peer_keeps_nobody_waiting(self) -> None:
        def body(engine: penstock.Engine, peer: penstock.Peer, other: Owner) -> None:
            other.stop()
            try:
                began = time.monotonic()
                with self.assertRaises(penstock.TimedOut):
                    peer.ping(timeout=0.2)
                notes = []
                with self.assertRaises(penstock.Full):  # Nobody takes them.
                    while True:
                        notes.append(peer.notify(1, bytes(4096), timeout=0.5))
                with self.assertRaises((penstock.Deadline, penstock.PeerLost)) as raised:
                    for note in notes:
                        note.wait(10)
                self.assertIn(raised.exception.stage, ("notifying", "queued", "moving bytes"))
                self.assertEqual(notes[-1].cancel(1).local, "quiesced")
                self.assertLess(time.monotonic() - began, 10)
            finally:
                os.kill(other.process.pid, signal.SIGCONT)

        self.each(body)


class BadInput(unittest.TestCase):
    def setUp(self) -> None:
        folder = self.enterContext(tempfile.TemporaryDirectory())
        self.engine = self.enterContext(penstock.Engine("self", yaml=configuration("local", folder)))
        self.pool = self.engine.pool(BLOCK * BLOCKS, block=BLOCK, label="kv")
        self.peer = self.engine.connect(self.engine.descriptor())
        self.remote = self.peer.region("kv", timeout=5)

    def test_plans_that_make_no_sense(self) -> None:
        for error, shape in [
            (penstock.InvalidArgument, {}),
            (penstock.InvalidArgument, {"blocks": [(-1, 0)]}),
            (penstock.InvalidArgument, {"blocks": [(0, 1 << 40)]}),
            (penstock.InvalidArgument, {"blocks": [(0, 1 << 80)]}),
            (penstock.InvalidArgument, {"extents": [(0, 0, 0)]}),
            (penstock.OutOfBounds, {"blocks": [(0, BLOCKS)]}),
            (penstock.OutOfBounds, {"extents": [(0, 1, BLOCK * BLOCKS)]}),
        ]:
            with self.subTest(shape), self.assertRaises(error):
                self.peer.write_plan(self.pool, self.remote, **shape)  # type: ignore[arg-type]
        with self.assertRaises(penstock.NotFound):
            self.peer.write_plan(self.pool, "nobody's", blocks=[(0, 1)])
        with self.assertRaises(TypeError):
            self.peer.write_plan(self.pool, 3, blocks=[(0, 1)])  # type: ignore[arg-type]

    def test_what_python_says_is_read_only_is_not_read_into(self) -> None:
        constant = bytes(BLOCK)
        region = self.engine.register(constant, "constant", rights="r")
        with self.assertRaises(penstock.AccessDenied):
            self.peer.read_plan(region, self.remote, extents=[(0, 0, 16)])
        with self.assertRaises(penstock.AccessDenied):
            self.peer.read_addresses([(region.address + 16, self.remote.address, 16)])
        self.peer.submit(self.peer.write_plan(region, self.remote, extents=[(0, 0, 16)])).wait(5)
        self.assertEqual(constant, bytes(BLOCK))

    def test_arguments_out_of_range(self) -> None:
        plan = self.peer.write_plan(self.pool, self.remote, extents=[(0, BLOCK, 8)])
        for timeout in (-1.0, float("nan")):
            with self.assertRaises(penstock.InvalidArgument):
                self.peer.submit(plan, timeout=timeout)
        for notify in (-1, 1 << 128, "seven", (1,), (1, "text"), (1, b"", 3)):
            with self.subTest(notify), self.assertRaises(penstock.InvalidArgument):
                self.peer.submit(plan, notify=notify)  # type: ignore[arg-type]
        with self.assertRaises(penstock.InvalidArgument):
            self.peer.submit(plan, notify=(1, bytes(5000)))
        with self.assertRaises(penstock.InvalidArgument):
            self.engine.pool(1 << 20, rights="x")
        with self.assertRaises(penstock.InvalidArgument):
            self.engine.connect()
        with self.assertRaises(penstock.InvalidArgument):
            self.engine.connect(b"card", name="also")
        with self.assertRaises(penstock.InvalidArgument):
            self.engine.connect(b"no descriptor")
        with self.assertRaises(penstock.Full):
            self.pool.take(BLOCKS + 1)
        with self.assertRaises(IndexError):
            self.pool.take(1)[1]
        with self.assertRaises(penstock.NotMapped):
            self.engine.register_address(4096, 4096)

    def test_an_engine_that_was_closed(self) -> None:
        plan = self.peer.write_plan(self.pool, self.remote, extents=[(0, BLOCK, 8)])
        transfer = self.peer.submit(plan)
        transfer.wait(5)
        self.assertEqual(self.engine.close(), [])
        self.assertEqual(self.engine.close(), [])
        for call in (
            lambda: self.engine.descriptor(),
            lambda: self.engine.pool(1 << 20),
            lambda: self.engine.notifications(),
            lambda: self.peer.submit(plan),
            lambda: self.peer.ping(),
            lambda: self.engine.connect(b"card"),
        ):
            with self.assertRaises(penstock.Closed):
                call()
        self.assertEqual(transfer.wait(1).bytes, 8)
        memoryview(self.pool)[0] = 1  # It is this object's as long as it is there.

    def test_reference_counts_stay(self) -> None:
        plan = self.peer.write_plan(self.pool, self.remote, extents=[(0, BLOCK, 8)])

        def rounds(count: int) -> None:
            for number in range(count):
                self.peer.submit(plan, notify=number).wait(5)
                for note in self.engine.notifications():
                    self.assertEqual(note.payload, b"")
                blocks = self.pool.take(1)
                blocks[0][0] = 1

        rounds(100)
        import gc

        gc.collect()
        before = len(gc.get_objects()), sys.getrefcount(self.peer), sys.getrefcount(plan), sys.getrefcount(self.pool)
        rounds(10_000)
        gc.collect()
        after = len(gc.get_objects()), sys.getrefcount(self.peer), sys.getrefcount(plan), sys.getrefcount(self.pool)
        self.assertEqual(before[1:], after[1:])
        self.assertLess(after[0] - before[0], 10)


if __name__ == "__main__":
    owner(*sys.argv[1:])
