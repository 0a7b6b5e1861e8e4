"""Transfers and notifications in an event loop."""

import asyncio
import os
import socket
import tempfile
import threading
import unittest

import penstock
from test_waits import use_up_room

BLOCK = 4096


class Awaiting(unittest.IsolatedAsyncioTestCase):
    def setUp(self) -> None:
        folder = self.enterContext(tempfile.TemporaryDirectory())
        yaml = f"engine: {{directory: {folder}}}\ntransports: {{allow: [local]}}\n"
        self.here = self.enterContext(penstock.Engine("here", yaml=yaml))
        self.there = self.enterContext(penstock.Engine("there", yaml=yaml))
        self.pool = self.here.pool(BLOCK * 1024, block=BLOCK)
        self.far = self.there.pool(BLOCK * 1024, block=BLOCK, label="kv")
        self.peer = self.here.connect(self.there.descriptor())
        self.remote = self.peer.region("kv", timeout=5)
        self.plan = self.peer.write_plan(self.pool, self.remote, blocks=[(0, 0)])

    async def test_a_thousand_at_once_without_a_thread(self) -> None:
        threads = threading.active_count(), len(os.listdir("/proc/self/task"))
        transfers = [self.peer.submit(self.plan, notify=number) for number in range(1000)]
        ends = asyncio.gather(*transfers)
        heard: list[int] = []
        async with asyncio.timeout(20):
            async for note in self.there.notifications():
                heard.append(note.id)
                if len(heard) == 1000:
                    break
        self.assertEqual(heard, list(range(1000)))
        self.assertEqual({end.bytes for end in await ends}, {BLOCK})
        # One that had been joined may still have been listed before.
        self.assertLessEqual((threading.active_count(), len(os.listdir("/proc/self/task"))), threads)

    async def test_a_wait_sleeps(self) -> None:
        # Room for one notification only in sixteen: the others wait until somebody takes them.
        transfers = await asyncio.to_thread(use_up_room, self.peer)
        waits = [asyncio.ensure_future(self.ended(transfer)) for transfer in transfers]
        await asyncio.sleep(0.3)
        before = os.times()
        await asyncio.sleep(0.5)
        spent = os.times().user + os.times().system - before.user - before.system
        self.assertTrue(any(not wait.done() for wait in waits))
        self.assertLess(spent, 0.4, "nobody polls meanwhile")
        taken = 0
        async with asyncio.timeout(20):
            async for _ in self.there.notifications():
                taken += 1
                if taken == len(transfers):
                    break
            await asyncio.gather(*waits)

    async def ended(self, transfer: penstock.Transfer) -> penstock.Completed:
        return await transfer

    async def stuck(self) -> penstock.Transfer:
        """A transfer that does not end: its notification has no room."""
        return (await asyncio.to_thread(use_up_room, self.peer))[-1]

    async def test_a_timeout_cancels_and_answers(self) -> None:
        transfer = await self.stuck()
        with self.assertRaises(TimeoutError):
            async with asyncio.timeout(0.1):
                await transfer
        answer = transfer.cancelled
        assert answer is not None
        self.assertEqual(answer.local, "quiesced")
        with self.assertRaises(penstock.Cancelled):
            await asyncio.wait_for(self.ended(transfer), 5)

    async def test_a_failure_is_raised(self) -> None:
        transfer = await self.stuck()
        waits = asyncio.ensure_future(self.ended(transfer))
        await asyncio.sleep(0)
        await asyncio.to_thread(self.there.close)
        with self.assertRaises((penstock.PeerClosed, penstock.PeerLost)):
            await asyncio.wait_for(waits, 10)

    async def test_a_closed_engine_ends_its_waits(self) -> None:
        async def listen() -> int:
            return len([note async for note in self.there.notifications()])

        listens = asyncio.ensure_future(listen())
        await asyncio.sleep(0.05)
        await asyncio.to_thread(self.there.close)
        self.assertEqual(await asyncio.wait_for(listens, 10), 0)

    async def test_a_close_leaves_the_readers_of_others(self) -> None:
        async def listen() -> None:
            async for _ in self.there.notifications():
                pass

        listens = asyncio.ensure_future(listen())
        await asyncio.sleep(0.05)
        self.there.close()
        heard = asyncio.Event()
        ours, theirs = socket.socketpair()
        with ours, theirs:
            # It may well have the number that the engine's had.
            asyncio.get_running_loop().add_reader(ours, heard.set)
            await asyncio.sleep(0.05)
            theirs.send(b"x")
            await asyncio.wait_for(heard.wait(), 5)
            asyncio.get_running_loop().remove_reader(ours)
        await asyncio.wait_for(listens, 5)

    async def test_a_second_loop_gets_an_error(self) -> None:
        transfer = await self.stuck()
        waits = asyncio.ensure_future(self.ended(transfer))
        await asyncio.sleep(0.05)

        def second() -> None:
            asyncio.run(self.ended(transfer))

        with self.assertRaisesRegex(RuntimeError, "another event loop"):
            await asyncio.to_thread(second)
        waits.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await waits

    async def test_no_notification_is_lost_by_a_cancelled_listener(self) -> None:
        async def listen() -> int:
            async for note in self.there.notifications():
                return note.id
            return -1

        for number in range(50):
            listens = asyncio.ensure_future(listen())
            await asyncio.sleep(0)
            transfer = self.peer.notify(number)
            if number % 2:
                await transfer
                await asyncio.sleep(0)
            listens.cancel()
            try:
                heard = await listens
            except asyncio.CancelledError:
                self.assertTrue(await asyncio.to_thread(self.there.wait_notification, 5))
                [note] = self.there.notifications()
                heard = note.id
            self.assertEqual(heard, number)


class Loops(unittest.TestCase):
    def test_one_loop_after_another(self) -> None:
        yaml = "transports: {allow: [local]}\n"
        with penstock.Engine("loops", yaml=yaml) as engine:
            pool = engine.pool(BLOCK * 4, block=BLOCK, label="kv")
            peer = engine.connect(engine.descriptor())
            plan = peer.write_plan(pool, peer.region("kv", timeout=5), blocks=[(0, 1)])

            async def once() -> int:
                return (await peer.submit(plan)).bytes

            for _ in range(5):
                self.assertEqual(asyncio.run(once()), BLOCK)

    def test_a_loop_that_was_closed_with_somebody_waiting_keeps_nothing(self) -> None:
        def count() -> int:
            return len(os.listdir("/proc/self/fd"))

        before = count()
        for _ in range(5):
            engine, loop = penstock.Engine("loops", yaml="transports: {allow: [local]}\n"), asyncio.new_event_loop()
            task = loop.create_task(anext(engine.notifications()))
            loop.run_until_complete(asyncio.sleep(0.01))
            loop.close()
            engine.close()
            task.get_coro().close()
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        self.assertLessEqual(count(), before)

    def test_an_inline_engine(self) -> None:
        yaml = "transports: {allow: [local]}\nworkers: {progress: inline}\n"

        async def both() -> None:
            with penstock.Engine("inline", yaml=yaml) as engine:
                self.assertTrue(engine.inline)
                pool = engine.pool(BLOCK * 4, block=BLOCK, label="kv")
                peer = engine.connect(engine.descriptor(), timeout=5)
                plan = peer.write_plan(pool, peer.region("kv", timeout=5), blocks=[(0, 1)])
                for number in range(10):
                    end = await asyncio.wait_for(self.submitted(peer, plan, number), 10)
                    self.assertEqual(end.notified, "yes")
                heard = [note.id for note in engine.notifications()]
                self.assertEqual(heard, list(range(10)))

        asyncio.run(both())

    async def submitted(self, peer: penstock.Peer, plan: penstock.Plan, number: int) -> penstock.Completed:
        return await peer.submit(plan, notify=number)
