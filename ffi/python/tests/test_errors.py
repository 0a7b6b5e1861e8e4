"""What fails: the class of the exception, and its fields."""

import multiprocessing
import pickle
import unittest
import warnings

import penstock

EXPORTED: list[object] = [getattr(penstock, name) for name in penstock.__all__]
SUBCLASSES: list[type[penstock.Error]] = [
    kind
    for kind in EXPORTED
    if isinstance(kind, type) and issubclass(kind, penstock.Error) and kind is not penstock.Error
]


class Classes(unittest.TestCase):
    def test_all_are_errors_of_this_package(self) -> None:
        self.assertGreater(len(SUBCLASSES), 20)
        for kind in SUBCLASSES:
            self.assertEqual(kind.__module__, "penstock")
            self.assertEqual(kind.__bases__[0], penstock.Error)

    def test_some_are_exceptions_of_python_too(self) -> None:
        for kind, other in [
            (penstock.InvalidArgument, ValueError),
            (penstock.BadConfig, ValueError),
            (penstock.NotFound, LookupError),
            (penstock.Deadline, TimeoutError),
            (penstock.TimedOut, TimeoutError),
            (penstock.PeerLost, ConnectionError),
            (penstock.OutOfMemory, MemoryError),
        ]:
            self.assertTrue(issubclass(kind, other), kind)

    def test_one_can_be_raised_by_a_program(self) -> None:
        kinds: list[type[penstock.Error]] = [penstock.Error, *SUBCLASSES]
        for kind in kinds:
            error = kind("in words")
            self.assertEqual(str(error), "in words")
            fields = (error.code, error.peer, error.stage, error.cause, error.remedy)
            self.assertEqual(fields, (0, None, None, None, None), kind)


class Fields(unittest.TestCase):
    def failed(self, kind: type[penstock.Error], *, name: str | None = None, yaml: str | None = None) -> penstock.Error:
        with self.assertRaises(kind) as raised:
            penstock.Engine(name, yaml=yaml)
        self.assertIs(type(raised.exception), kind)
        return raised.exception

    def test_yaml_that_is_wrong(self) -> None:
        for yaml, words in [
            ("workers: [", "config_yaml"),
            ("nonsense: 1", "nonsense"),
            ("workers:\n  count: many\n", "count"),
        ]:
            error = self.failed(penstock.BadConfig, yaml=yaml)
            self.assertEqual(error.code, 20)
            self.assertIn(words, str(error))
            self.assertIsNone(error.peer)
            self.assertIsNone(error.stage)

    def test_numbers_that_are_none_here(self) -> None:
        yaml = "transports: {allow: [local]}\n"
        with penstock.Engine("numbers", yaml=yaml) as engine:
            pool = engine.pool(1 << 16, block=4096, label="kv")
            peer = engine.connect(engine.descriptor())
            counter = pool.counter("counter")
            for call in (
                lambda wrong: engine.pool(wrong),
                lambda wrong: engine.pool(4096, block=wrong),
                lambda wrong: pool.take(wrong),
                lambda wrong: engine.region_at(wrong),
                lambda wrong: engine.register_address(wrong, 1),
                lambda wrong: engine.register_address(1, wrong),
                lambda wrong: peer.region_at(1, wrong),
                lambda wrong: peer.write_plan(pool, "kv", blocks=[(0, 1)], block_bytes=wrong),
                lambda wrong: counter.wait(wrong, timeout=0),
            ):
                for wrong, words in ((-1, "-1 is negative"), (1 << 64, "is too large"), ("1", "not an int but `str`")):
                    with self.assertRaisesRegex(penstock.InvalidArgument, words):
                        call(wrong)
            with self.assertRaisesRegex(penstock.InvalidArgument, "does not fit a pool"):
                engine.pool(4096, block=8192)
            for wrong in (-1, 1 << 128):
                with self.assertRaisesRegex(penstock.InvalidArgument, "at most 128 bits"):
                    peer.notify(wrong)

    def test_a_file_that_is_not_there(self) -> None:
        with self.assertRaisesRegex(penstock.BadConfig, "nowhere.yaml"):
            penstock.Engine(config="nowhere.yaml")

    def test_two_configurations(self) -> None:
        with self.assertRaisesRegex(penstock.InvalidArgument, "not both") as raised:
            penstock.Engine(config="a.yaml", yaml="{}")
        self.assertEqual(raised.exception.code, 10)

    def test_texts_with_zeros(self) -> None:
        for arguments in ({"name": "a\0b"}, {"yaml": "a\0b"}, {"config": "a\0b"}):
            with self.assertRaisesRegex(penstock.InvalidArgument, next(iter(arguments))):
                penstock.Engine(**arguments)

    def test_other_types(self) -> None:
        for value in (1, b"bytes", ["list"]):
            with self.assertRaises(TypeError):
                penstock.Engine(value)  # type: ignore[arg-type]

    def test_words_and_status_agree_with_the_library(self) -> None:
        engine = penstock.Engine("ended")
        engine.close()
        with self.assertRaises(penstock.Closed) as raised:
            engine.descriptor()
        self.assertEqual(str(raised.exception), penstock.message(raised.exception.code))

    def test_what_is_known_of_one_survives_pickling(self) -> None:
        error = self.failed(penstock.BadConfig, yaml="nonsense: 1")
        copy = pickle.loads(pickle.dumps(error))
        self.assertIs(type(copy), penstock.BadConfig)
        self.assertEqual((str(copy), copy.code, vars(copy)), (str(error), 20, vars(error)))


class Forked(unittest.TestCase):
    def test_a_child_is_told_that_its_parent_s_engine_is_not_its_own(self) -> None:
        context = multiprocessing.get_context("fork")
        answers = context.SimpleQueue()

        def child() -> None:
            try:
                engine.descriptor()
            except penstock.Error as error:
                answers.put(error)
            with penstock.Engine("child") as own:
                answers.put(own.name)

        with penstock.Engine("parent") as engine:
            process = context.Process(target=child)
            with warnings.catch_warnings():
                # Later Pythons warn of forks beside any other thread.
                warnings.simplefilter("ignore", DeprecationWarning)
                process.start()
            process.join(20)
            self.assertEqual(process.exitcode, 0)
            error = answers.get()
            self.assertIsInstance(error, penstock.Forked)
            self.assertEqual(error.code, 110)
            self.assertEqual(answers.get(), "child")
            self.assertTrue(engine.descriptor())


if __name__ == "__main__":
    unittest.main()
