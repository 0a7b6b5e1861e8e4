"""Rows and lists of numbers, as arguments: what is read from arrays and sequences, and what is refused."""

import array
import collections
import ctypes
import importlib
import time
import unittest
from typing import Any

import penstock

SIZE = 1 << 16
ROWS = [(0, 512, 16), (64, 0, 32), (4096, 128, 8)]


def needs(test: unittest.TestCase, name: str) -> Any:
    """A module that this Python may not have."""
    try:
        return importlib.import_module(name)
    except ImportError:
        test.skipTest(f"needs {name}")


class WithPeer(unittest.TestCase):
    """An engine with a session to itself, and two regions."""

    def setUp(self) -> None:
        self.engine = penstock.Engine("arrays")
        self.addCleanup(self.engine.close)
        self.source = bytearray(range(256)) * (SIZE // 256)
        self.target = bytearray(SIZE)
        self.local = self.engine.register(self.source, "source")
        self.remote = self.engine.register(self.target, "target")
        self.peer = self.engine.connect(self.engine.descriptor(), timeout=5.0)

    def addresses(self, rows: Any) -> list[tuple[int, int, int]]:
        """Rows of offsets, as addresses."""
        return [(self.local.address + a, self.remote.address + b, size) for a, b, size in rows]

    def moves(self, argument: Any, rows: list[tuple[int, int, int]] = ROWS) -> None:
        """Writes by `argument`, and sees that it was these rows of offsets."""
        self.target[:] = bytes(SIZE)
        plan = self.peer.write_addresses(argument)
        self.assertEqual(plan.bytes, sum(size for _, _, size in rows))
        self.peer.submit(plan).wait(timeout=5.0)
        expected = bytearray(SIZE)
        for local, remote, size in rows:
            expected[remote : remote + size] = self.source[local : local + size]
        self.assertEqual(self.target, expected)

    def refused(self, argument: Any, words: str) -> penstock.Error:
        with self.assertRaisesRegex(penstock.InvalidArgument, words) as raised:
            self.peer.write_addresses(argument)
        return raised.exception

    def columns(self) -> "list[array.array[int]]":
        return [array.array("Q", column) for column in zip(*self.addresses(ROWS), strict=True)]


class Sequences(WithPeer):
    def test_of_sequences_of_ints(self) -> None:
        rows = self.addresses(ROWS)
        for argument in (
            rows,
            [list(row) for row in rows],
            [collections.deque(row) for row in rows],
            collections.deque(rows),
            [array.array("Q", row) for row in rows] + [(rows[0][0], rows[0][1], 0)],
            [array.array("Q", rows[0]), *rows[1:]],
            [array.array("Q", row) for row in rows],
        ):
            with self.subTest(argument):
                self.moves(argument)

    def test_a_tuple_is_never_rows_however_many_there_are(self) -> None:
        rows = self.addresses(ROWS)
        for tuples in (tuple(rows), tuple(list(row) for row in rows), tuple(rows[:2]), (range(3), range(3), range(3))):
            self.refused(tuples, "a tuple holds 3 columns, each an array of integers or an int; rows go in a list")

    def test_of_what_can_be_an_int(self) -> None:
        class Number:
            def __init__(self, value: int) -> None:
                self.value = value

            def __index__(self) -> int:
                return self.value

        self.moves([tuple(map(Number, row)) for row in self.addresses(ROWS)])
        self.moves([tuple(map(ctypes.c_uint64, row)) for row in self.addresses(ROWS)][:0], [])

    def test_of_nothing(self) -> None:
        self.moves([], [])
        self.moves((), [])

    def test_errors_name_the_row_and_what_is_wrong(self) -> None:
        good = (self.local.address, self.remote.address, 8)
        for bad, words in [
            ((1, 2), "row 1 of `.*` has 2 numbers, not 3"),
            ((1, 2, 3, 4), "row 1 of `.*` has 4 numbers, not 3"),
            ([], "row 1 of `.*` has 0 numbers"),
            ((1, 2, -3), "column 2 in row 1 of `.*` is negative"),
            ((1, 1 << 64, 3), "column 1 in row 1 of `.*` is too large"),
            ((1, 2.0, 3), "column 1 in row 1 of `.*` is not an int but `float`"),
            (("1", 2, 3), "column 0 in row 1 of `.*` is not an int but `str`"),
            ([1, None, 3], "column 1 in row 1 of `.*` is not an int but `NoneType`"),
            ("abc", "row 1 of `.*` is `str`"),
            ({1, 2, 3}, "row 1 of `.*` is `set`"),
            (5, "row 1 of `.*` is `int`"),
            (array.array("Q", [1, 2]), "row 1 of `.*` has 2 numbers, not 3"),
            (array.array("q", [1, 2, -3]), "row 1 of `.*` is -3 at index 2"),
            (array.array("d", [1, 2, 3]), "row 1 of `.*` is an array of floating-point"),
        ]:
            with self.subTest(bad=bad):
                self.refused([good, bad], words)

    def test_other_things_are_refused(self) -> None:
        for other in (5, "abc", None, {1: 2}, {(1, 2, 3)}, iter([(1, 2, 3)]), object()):
            self.refused(other, "give a sequence of rows, or an array")

    def test_what_the_program_raises_comes_through(self) -> None:
        class Raising:
            def __index__(self) -> int:
                raise ZeroDivisionError

        with self.assertRaises(ZeroDivisionError):
            self.peer.write_addresses([(Raising(), 1, 2)])


class Columns(WithPeer):
    def test_of_arrays(self) -> None:
        local, remote, sizes = self.columns()
        self.moves((local, remote, sizes))
        self.moves((memoryview(local), memoryview(remote), memoryview(sizes)))
        for kind in "bBhHiIlLqQ":
            self.moves((local, remote, array.array(kind, sizes)))
        self.moves(tuple(array.array("Q") for _ in range(3)), [])

    def test_an_int_is_used_for_every_row(self) -> None:
        local, remote, _ = self.columns()
        self.moves((local, remote, 4), [(a, b, 4) for a, b, _ in ROWS])

    def test_any_strides(self) -> None:
        local, remote, sizes = (memoryview(array.array("Q", reversed(column)))[::-1] for column in self.columns())
        self.moves((local, remote, sizes))
        spread = array.array("Q", [0] * 6)
        spread[::2] = self.columns()[0]
        self.moves((memoryview(spread)[::2], remote, sizes))

    def test_of_ctypes(self) -> None:
        self.moves(tuple((ctypes.c_uint64 * 3)(*column) for column in self.columns()))

    def test_errors_name_the_column_and_what_is_wrong(self) -> None:
        local, remote, sizes = self.columns()
        for bad, words in [
            (sizes[:2], "differ in length: column 0 has 3 numbers, and column 2 has 2"),
            (array.array("d", [1.0] * 3), "column 2 of `.*` is an array of floating-point numbers"),
            (array.array("i", [1, -2, 3]), "column 2 of `.*` is -2 at index 1"),
            (-1, "column 2 of `.*` is negative"),
            (1 << 64, "column 2 of `.*` is too large"),
            (1.5, "column 2 of `.*` is not an int but `float`"),
            ("abc", "column 2 of `.*` is not an int but `str`"),
            ((ctypes.c_bool * 3)(), "column 2 of `.*` is an array of truth values"),
            ((ctypes.c_uint32.__ctype_be__ * 3)(1, 2, 3), "column 2 of `.*` .*byte order"),
            ((ctypes.c_char_p * 3)(), "column 2 of `.*` is an array of other things"),
            (memoryview(bytearray(9)).cast("B", (3, 3)), "column 2 of `.*` has 2 dimensions, not one"),
        ]:
            with self.subTest(bad=bad):
                self.refused((local, remote, bad), words)
        self.refused((local[:2], remote[:2]), "`.*` is a tuple of 2 columns, not of 3; rows go in a list")
        self.refused([local[:2], remote[:2]], "row 0 of `.*` has 2 numbers, not 3; columns go in a tuple")
        self.refused((1, 2, 3), "no array of them")


class Tables(WithPeer):
    def test_of_two_dimensions(self) -> None:
        flat = array.array("Q", [number for row in self.addresses(ROWS) for number in row])
        self.moves(memoryview(flat).cast("B").cast("Q", (3, 3)))
        self.moves(((ctypes.c_int64 * 3) * 3)(*self.addresses(ROWS)))  # type: ignore[misc]

    def test_others_are_refused(self) -> None:
        view = memoryview(bytearray(96))
        self.refused(view.cast("Q", (6, 2)), "rows of 2 numbers, not of 3")
        self.refused(view.cast("Q"), "has 1 dimensions, not two; columns .* tuple of 3")
        self.refused(view.cast("Q", (2, 2, 3)), "has 3 dimensions, not two")
        self.refused(view.cast("d", (4, 3)), "floating-point")
        self.refused(view.cast("?", (32, 3)), "truth values")
        self.refused(((ctypes.c_int64 * 3) * 2)((1, 2, 3), (4, -5, 6)), "column 1 of `.*` is -5 at index 1")  # type: ignore[misc]


class Numpy(WithPeer):
    def setUp(self) -> None:
        super().setUp()
        self.numpy = needs(self, "numpy")

    def test_arrays_of_two_dimensions_with_any_strides(self) -> None:
        numpy = self.numpy
        table = numpy.array(self.addresses(ROWS), dtype="uint64")
        wide = numpy.zeros((6, 7), dtype="uint64")
        wide[::2, 1:7:2] = table
        for argument in (
            table,
            table.astype("int64"),
            numpy.asfortranarray(table),
            numpy.ascontiguousarray(table[::-1])[::-1],
            numpy.ascontiguousarray(table[:, ::-1])[:, ::-1],
            wide[::2, 1:7:2],
            list(table) + [[*self.addresses(ROWS)[0][:2], 0]],
        ):
            self.moves(argument)
        self.moves(numpy.zeros((0, 3), dtype="int32"), [])

    def test_columns(self) -> None:
        numpy = self.numpy
        local, remote, sizes = numpy.array(self.addresses(ROWS), dtype="uint64").T
        self.moves((local, remote, sizes.astype("uint8")))
        same = [(a, b, 8) for a, b, _ in ROWS]
        for eight in (8, numpy.int64(8), numpy.array(8), numpy.broadcast_to(numpy.uint16(8), 3)):
            self.moves((local, remote, eight), same)
        packed = numpy.zeros(5, dtype=[("skip", "u1"), ("number", "u8")])[1:4]
        packed["number"] = sizes
        self.moves((local, remote, packed["number"]))
        self.moves([tuple(row) for row in numpy.array(self.addresses(ROWS))])

    def test_others_are_refused(self) -> None:
        numpy = self.numpy
        local, remote, sizes = numpy.array(self.addresses(ROWS), dtype="uint64").T
        for bad, words in [
            (sizes.astype(float), "floating-point"),
            (sizes.astype("float16"), "floating-point"),
            (sizes.astype("complex64"), "other things than integers"),
            (sizes.astype(bool), "truth values"),
            (sizes.astype(">u8"), "byte order"),
            (sizes.astype(object), "Python objects"),
            (sizes.astype("datetime64[s]"), "cannot be read as an array"),
            (numpy.zeros(3, dtype="V5"), "other things than integers"),
            (sizes[:1], "differ in length"),
            (-sizes.astype("int64"), "column 2 of `.*` is -16 at index 0"),
        ]:
            with self.subTest(bad=bad):
                self.refused((local, remote, bad), f"column.*{words}" if words[0] not in "dc" else words)
        with self.assertRaises((MemoryError, penstock.InvalidArgument)):
            self.peer.write_addresses(numpy.broadcast_to(numpy.uint8(1), (1 << 60, 3)))

    def test_many_rows_are_read_in_a_moment(self) -> None:
        numpy = self.numpy
        count = 18_880
        local = self.local.address + numpy.arange(count, dtype="uint64") % 1024
        remote = self.remote.address + numpy.arange(count, dtype="uint64")
        plan, quickest = None, float("inf")
        for _ in range(5):
            began = time.perf_counter()
            plan = self.peer.write_addresses((local, remote, 1))
            quickest = min(quickest, time.perf_counter() - began)
        assert plan is not None
        self.assertEqual(plan.bytes, count)
        # The plan is made in that time too, in a build for tests.
        self.assertLess(quickest, 0.1)


class Torch(WithPeer):
    def test_tensors_on_the_cpu(self) -> None:
        torch = needs(self, "torch")
        needs(self, "numpy")
        table = torch.tensor(self.addresses(ROWS), dtype=torch.int64)
        self.moves(table)
        self.moves(tuple(table.t()))
        self.moves((table[:, 0], table[:, 1], torch.tensor(8)), [(a, b, 8) for a, b, _ in ROWS])
        self.refused(table.double(), "floating-point")


class Numbers(WithPeer):
    """Blocks of a plan: a list of numbers."""

    def write(self, blocks: Any) -> penstock.Plan:
        remote = self.peer.region("target", timeout=5.0)
        return self.peer.write_plan(self.local, remote, blocks=blocks, block_bytes=256)

    def test_pairs_of_blocks(self) -> None:
        pairs = [(0, 3), (1, 2), (7, 7)]
        columns = [array.array("I", column) for column in zip(*pairs, strict=True)]
        for blocks in (pairs, [list(pair) for pair in pairs], tuple(columns), (memoryview(columns[0]), columns[1])):
            self.assertEqual(self.write(blocks).bytes, 3 * 256)
        with self.assertRaisesRegex(penstock.InvalidArgument, "row 1 of `.*` has 3 numbers, not 2"):
            self.write([(0, 3), (1, 2, 3)])


if __name__ == "__main__":
    unittest.main()
