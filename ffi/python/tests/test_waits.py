"""Waits: Ctrl-C, other threads, forks, and the end of the program."""

import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import unittest

import penstock

LOCAL = "transports: {allow: [local]}\n"


def interrupted(wait) -> float:  # type: ignore[no-untyped-def]
    """How long after Ctrl-C a wait ends."""
    struck = [0.0]

    def strike() -> None:
        time.sleep(0.2)
        struck[0] = time.monotonic()
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=strike)
    thread.start()
    try:
        wait()
    except KeyboardInterrupt:
        return time.monotonic() - struck[0]
    finally:
        thread.join()
    raise AssertionError("the wait was not interrupted")


def use_up_room(peer: penstock.Peer) -> list[penstock.Transfer]:
    """Sends notifications that nobody takes until there is room for no more: a close waits for the last ones."""
    transfers = []
    until = time.monotonic() + 0.2
    while time.monotonic() < until:
        try:
            transfers.append(peer.notify(1, bytes(4096)))
        except penstock.Full:
            time.sleep(0.001)  # The engine's thread may only be late: only a lack that lasts is one.
        else:
            until = time.monotonic() + 0.2
    return transfers


class ControlC(unittest.TestCase):
    def setUp(self) -> None:
        # A shell starts jobs in the background with it ignored, and Python then leaves it so.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        self.addCleanup(signal.signal, signal.SIGINT, before)

    def test_it_ends_any_wait(self) -> None:
        with penstock.Engine("waits", yaml=LOCAL) as engine:
            pool = engine.pool(1 << 20, block=1 << 20, label="kv")
            counter = pool.counter("never")
            peer = engine.connect(engine.descriptor())
            taken = pool.take(1)
            for wait in (
                lambda: engine.wait_notification(timeout=20),
                lambda: counter.wait(1, timeout=20),
                lambda: peer.region("nobody's", timeout=20),
                lambda: pool.take(1, timeout=20),
                lambda: engine.connect(name="nobody", timeout=20),
            ):
                # 100 ms, and as many again for a machine that is busy.
                self.assertLess(interrupted(wait), 0.2)
            del taken


    def test_an_engine_that_nobody_gets_any_more_takes_no_exception_with_it(self) -> None:
        def interrupt(*_: object) -> None:
            raise KeyboardInterrupt

        before = signal.signal(signal.SIGALRM, interrupt)
        self.addCleanup(signal.signal, signal.SIGALRM, before)
        for step in range(40):
            with self.assertRaises(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, 0.0002 * (step + 1))
                # It comes in the middle of one of these calls, or between two.
                while True:
                    penstock.Engine(f"interrupted-{step}")

    def test_the_log_does_not_take_it(self) -> None:
        def raised(wait) -> bool:  # type: ignore[no-untyped-def]
            try:
                interrupted(wait)
            except AssertionError:
                return False
            return True

        yaml = 'transports: {allow: [tcp]}\nsession: {listen: ["127.0.0.1:0"]}\n'
        with penstock.Engine("heard", yaml=yaml) as there, penstock.Engine("hears", yaml=yaml) as here:
            penstock.set_log_level("trace")
            try:
                stop = threading.Event()

                def talk() -> None:
                    while not stop.is_set():
                        there.connect(here.descriptor(), timeout=5).disconnect()

                talks = threading.Thread(target=talk)
                talks.start()
                try:
                    self.assertTrue(raised(lambda: here.wait_notification(timeout=10)))
                finally:
                    stop.set()
                    talks.join()
            finally:
                penstock.set_log_level("warning")

    def test_a_close_that_was_interrupted_is_waited_for(self) -> None:
        engine = penstock.Engine("interrupted", yaml=LOCAL)
        pool = engine.pool(1 << 16, label="kv")
        peer = engine.connect(engine.descriptor())
        use_up_room(peer)
        began = time.monotonic()
        if interrupted(lambda: engine.close(timeout=4)) < 1:
            self.assertFalse(engine.closed)
            with self.assertRaises(penstock.TimedOut):
                engine.close(timeout=0.05)
        self.assertEqual(engine.close(timeout=20), [])
        self.assertTrue(engine.closed)
        self.assertGreater(time.monotonic() - began, 1, "half of its time is for what goes on")
        del pool


class Threads(unittest.TestCase):
    def test_ten_submit_at_once_and_others_run(self) -> None:
        with penstock.Engine("threads", yaml=LOCAL) as engine:
            pool = engine.pool(1 << 20, block=4096, label="kv")
            peer = engine.connect(engine.descriptor())
            remote = peer.region("kv", timeout=5)
            failed: list[BaseException] = []

            def work(number: int) -> None:
                try:
                    plan = peer.write_plan(pool, remote, blocks=[(2 * number, 2 * number + 1)])
                    memoryview(pool)[2 * number * 4096] = number + 1
                    for _ in range(200):
                        self.assertEqual(peer.submit(plan).wait(10).bytes, 4096)
                    self.assertEqual(memoryview(pool)[(2 * number + 1) * 4096], number + 1)
                except BaseException as error:
                    failed.append(error)

            threads = [threading.Thread(target=work, args=(number,)) for number in range(10)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(failed, [])

    def test_a_close_ends_the_waits_of_others(self) -> None:
        engine = penstock.Engine("closed", yaml=LOCAL)
        ended: list[BaseException | bool] = []

        def wait() -> None:
            try:
                ended.append(engine.wait_notification(timeout=20))
            except penstock.Closed as error:
                ended.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(0.1)
        began = time.monotonic()
        engine.close()
        thread.join()
        self.assertLess(time.monotonic() - began, 5)
        self.assertIsInstance(ended[0], penstock.Closed)


def start_own_engine(name: str) -> None:
    with penstock.Engine(name, yaml=LOCAL) as engine:
        pool = engine.pool(1 << 16, block=4096, label="kv")
        peer = engine.connect(engine.descriptor())
        plan = peer.write_plan(pool, peer.region("kv", timeout=5), blocks=[(0, 1)])
        peer.submit(plan).wait(5)


class Children(unittest.TestCase):
    def test_a_forked_one_has_engines_of_its_own_only(self) -> None:
        with penstock.Engine("parent", yaml=LOCAL) as engine:
            pool = engine.pool(1 << 16, block=4096)
            blocks = pool.take(1)
            child = os.fork()
            if child == 0:
                try:
                    try:
                        engine.descriptor()
                    except penstock.Forked:
                        for touch in (lambda: memoryview(pool), lambda: blocks[0]):
                            try:
                                touch()  # type: ignore[no-untyped-call]
                                os._exit(2)
                            except (penstock.Forked, BufferError):
                                pass
                        for _ in range(2):
                            try:
                                engine.close()
                                os._exit(3)
                            except penstock.Forked:
                                pass
                        start_own_engine("child")
                        os._exit(0)
                finally:
                    os._exit(1)
            self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
            start_own_engine("still-here")

    def test_multiprocessing(self) -> None:
        with penstock.Engine("parent", yaml=LOCAL):
            contexts = multiprocessing.get_context("fork"), multiprocessing.get_context("spawn")
            for context in contexts:
                method = context.get_start_method()
                child = context.Process(target=start_own_engine, args=(f"{method}ed",))
                child.start()
                child.join(20)
                self.assertEqual(child.exitcode, 0, method)


class Exit(unittest.TestCase):
    def run_to_its_end(self, program: str) -> tuple[float, str]:
        began = time.monotonic()
        command = [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(program)]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=20)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        return time.monotonic() - began, ran.stdout + ran.stderr

    def test_a_program_that_ends_during_transfers_ends_soon(self) -> None:
        took, said = self.run_to_its_end(
            """
            import penstock, threading
            engines = [penstock.Engine(f"exit-{n}", yaml="transports: {allow: [local]}") for n in range(3)]
            pool = engines[0].pool(1 << 24, block=1 << 20, label="kv")
            peer = engines[1].connect(engines[0].descriptor())
            mine = engines[1].pool(1 << 24, block=1 << 20)
            plan = peer.write_plan(mine, peer.region("kv", timeout=5), blocks=[(n, n) for n in range(16)])
            transfers = [peer.submit(plan) for _ in range(100)]
            notes = [peer.notify(1, bytes(4096)) for _ in range(10)]
            waits = threading.Thread(target=lambda: engines[2].wait_notification(timeout=60), daemon=True)
            waits.start()
            print("ends")
            """
        )
        self.assertEqual(said, "ends\n")
        self.assertLess(took, 2 + 1)  # With the start of the interpreter.

    def test_a_program_ends_while_an_interrupted_close_does(self) -> None:
        _, said = self.run_to_its_end(
            """
            import penstock, signal, test_waits
            engine = penstock.Engine("exit-of-close", yaml=test_waits.LOCAL)
            pool = engine.pool(1 << 16, label="kv")
            test_waits.use_up_room(engine.connect(engine.descriptor()))
            signal.signal(signal.SIGALRM, signal.default_int_handler)
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            try:
                engine.close(timeout=1)
            except KeyboardInterrupt:
                print("interrupted")
            print(engine.close(timeout=20))
            """
        )
        self.assertEqual(said, "interrupted\n[]\n")

    def test_a_handler_of_the_exit_may_wait_for_a_thread_and_close(self) -> None:
        took, said = self.run_to_its_end(
            """
            import atexit, threading, weakref
            stop = threading.Event()
            threads = []
            def end():
                stop.set()
                threads[0].join(10)
                print("joined", threads[0].is_alive(), engine.close(), engine.closed)
            atexit.register(end)        # before the package's own, and so after it
            import penstock
            engine = penstock.Engine("at-exit", yaml="transports: {allow: [local]}")
            def loop():
                try:
                    while not stop.is_set():
                        engine.wait_notification(timeout=0.1)
                except penstock.Closed:
                    pass
            threads.append(threading.Thread(target=loop, daemon=True))
            threads[0].start()
            """
        )
        self.assertEqual(said, "joined False [] True\n")
        self.assertLess(took, 5)


class Log(unittest.TestCase):
    def test_it_goes_to_logging(self) -> None:
        with self.assertLogs("penstock", "INFO") as heard, tempfile.TemporaryDirectory() as folder:
            penstock.set_log_level("info")
            try:
                yaml = f'engine: {{directory: {folder}}}\ntransports: {{allow: [tcp]}}\nsession: {{listen: ["127.0.0.1:0"]}}\n'
                with penstock.Engine("says", yaml=yaml) as one, penstock.Engine("hears", yaml=yaml) as other:
                    one.connect(other.descriptor()).disconnect()
                    one.drain()
            finally:
                penstock.set_log_level("warning")
            logging.getLogger("penstock").info("something")
        self.assertTrue(all(record.name.startswith("penstock") for record in heard.records))
        self.assertGreater(len(heard.records), 1, "the engine says when sessions come and go")

    def test_a_level_that_is_none(self) -> None:
        with self.assertRaises(penstock.InvalidArgument):
            penstock.set_log_level("loud")
