"""Engines: how they start and end."""

import gc
import os
import pathlib
import tempfile
import threading
import time
import unittest

import penstock


def threads() -> set[str]:
    """Threads of this process, also those that are not Python's."""
    return set(os.listdir("/proc/self/task"))


def are_gone(ended: set[str]) -> bool:
    """Whether threads end; the kernel lists one that was joined for a moment more."""
    limit = time.monotonic() + 5
    while ended & threads() and time.monotonic() < limit:
        time.sleep(0.001)
    return not ended & threads()


class Starting(unittest.TestCase):
    def test_it_has_the_name_that_it_was_given(self) -> None:
        with penstock.Engine("decode-0") as engine:
            self.assertEqual(engine.name, "decode-0")
            self.assertEqual(repr(engine), '<penstock.Engine "decode-0">')

    def test_without_a_name_it_has_one(self) -> None:
        with penstock.Engine() as engine:
            self.assertIn(str(os.getpid()), engine.name)

    def test_the_configuration_is_a_text_or_a_file(self) -> None:
        yaml = "engine:\n  name: from-yaml\n"
        with penstock.Engine(yaml=yaml) as engine:
            self.assertEqual(engine.name, "from-yaml")
        with penstock.Engine("from-argument", yaml=yaml) as engine:
            self.assertEqual(engine.name, "from-argument")
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "penstock.yaml")
            path.write_text(yaml)
            for config in (path, str(path)):
                with penstock.Engine(config=config) as engine:
                    self.assertEqual(engine.name, "from-yaml")

    def test_a_long_name_comes_back_whole_or_is_refused(self) -> None:
        name = "n" * 60
        with penstock.Engine(name) as engine:
            self.assertEqual(engine.name, name)
        with self.assertRaises(penstock.BadConfig):
            penstock.Engine("n" * 10_000)

    def test_each_has_a_descriptor_of_its_own(self) -> None:
        with penstock.Engine("a") as a, penstock.Engine("b") as b:
            self.assertIsInstance(a.descriptor(), bytes)
            self.assertEqual(a.descriptor(), a.descriptor())
            self.assertNotEqual(a.descriptor(), b.descriptor())


class Closing(unittest.TestCase):
    def test_its_threads_end_with_it(self) -> None:
        before = threads()
        engine = penstock.Engine("closing")
        its = threads() - before
        self.assertTrue(its)
        engine.close()
        self.assertTrue(are_gone(its))

    def test_a_with_block_ends_it_whatever_is_raised(self) -> None:
        with self.assertRaises(KeyError), penstock.Engine("raising") as engine:
            raise KeyError
        self.assertTrue(engine.closed)

    def test_afterwards_calls_say_so(self) -> None:
        engine = penstock.Engine("closed")
        self.assertFalse(engine.closed)
        engine.close(timeout=0.5)
        engine.close()
        self.assertTrue(engine.closed)
        self.assertEqual(engine.name, "closed")
        self.assertIn("closed", repr(engine))
        with self.assertRaises(penstock.Closed):
            engine.descriptor()

    def test_one_that_nobody_holds_ends(self) -> None:
        before = threads()
        engine = penstock.Engine("forgotten")
        its = threads() - before
        self.assertTrue(its)
        del engine
        gc.collect()
        self.assertTrue(are_gone(its))

    def test_a_timeout_that_makes_no_sense_closes_nothing(self) -> None:
        with penstock.Engine("timeouts") as engine:
            for timeout in (-1, -0.001, float("nan")):
                with self.assertRaises(penstock.InvalidArgument):
                    engine.close(timeout)
            with self.assertRaises(TypeError):
                engine.close("soon")  # type: ignore[arg-type]
            self.assertFalse(engine.closed)
            engine.close(timeout=float("inf"))
            self.assertTrue(engine.closed)

    def test_many_threads_may_close_it_at_once(self) -> None:
        for _ in range(20):
            engine = penstock.Engine("raced")
            raised: list[BaseException] = []

            def close(engine: penstock.Engine = engine, raised: list[BaseException] = raised) -> None:
                try:
                    engine.close()
                except BaseException as error:
                    raised.append(error)

            closers = [threading.Thread(target=close) for _ in range(4)]
            for closer in closers:
                closer.start()
            for closer in closers:
                closer.join()
            self.assertEqual(raised, [])
            self.assertTrue(engine.closed)

    def test_an_inline_engine_closes_too(self) -> None:
        with penstock.Engine("inline", yaml="workers:\n  progress: inline\n") as engine:
            self.assertTrue(engine.descriptor())
        self.assertTrue(engine.closed)


class Lock(unittest.TestCase):
    def test_other_threads_run_while_one_is_in_the_library(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            # Read by the library until it has ended, which another thread has to bring about.
            config = pathlib.Path(folder, "fifo")
            os.mkfifo(config)
            writer = threading.Thread(target=lambda: config.write_text("engine:\n  name: from-fifo\n"), daemon=True)
            writer.start()
            with penstock.Engine(config=config) as engine:
                self.assertEqual(engine.name, "from-fifo")
            writer.join()


if __name__ == "__main__":
    unittest.main()
