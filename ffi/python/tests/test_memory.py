"""Memory of Python objects: which are taken, what is refused, and what keeps it in its place."""

import array
import contextlib
import ctypes
import gc
import importlib
import mmap
import subprocess
import sys
import unittest
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import penstock


def needs(test: unittest.TestCase, name: str) -> Any:
    """A module that this Python may not have."""
    try:
        return importlib.import_module(name)
    except ImportError:
        test.skipTest(f"needs {name}")


class WithEngine(unittest.TestCase):
    def setUp(self) -> None:
        self.engine = penstock.Engine("memory")
        self.addCleanup(self.engine.close)

    @contextlib.contextmanager
    def registered(self, memory: Any, rights: str = "rw") -> Iterator[penstock.Region]:
        region = self.engine.register(memory, rights=rights)
        try:
            yield region
        finally:
            region.deregister()

    def refused(self, memory: Any, words: str, kind: type[penstock.Error] = penstock.InvalidArgument) -> penstock.Error:
        with self.assertRaisesRegex(kind, words) as raised:
            self.engine.register(memory)
        self.assertIs(type(raised.exception), kind)
        return raised.exception


class Buffers(WithEngine):
    def test_those_of_the_standard_library_are_taken_as_they_lie(self) -> None:
        with mmap.mmap(-1, 8192) as mapped:
            held = (ctypes.c_uint16 * 50)()
            for memory, size in [
                (bytearray(100), 100),
                (array.array("d", [1.0] * 7), 56),
                (mapped, 8192),
                (held, 100),
                (memoryview(bytearray(100))[10:30], 20),
                (memoryview(bytearray(24)).cast("I", (2, 3)), 24),
                (memoryview(array.array("q", [0] * 9)), 72),
            ]:
                with self.subTest(type(memory).__name__), self.registered(memory) as region:
                    self.assertEqual(region.bytes, size)
                    self.assertEqual(region.address, ctypes.addressof(ctypes.c_char.from_buffer(memory)))  # type: ignore[arg-type]

    def test_memory_that_is_read_only_can_be_read(self) -> None:
        for memory in (b"x" * 10, memoryview(bytearray(10)).toreadonly()):
            with self.registered(memory, rights="r") as region:
                self.assertEqual(region.bytes, 10)
            with self.assertRaises(penstock.AccessDenied):
                self.engine.register(memory, rights="rw")

    def test_what_is_registered_cannot_be_resized(self) -> None:
        numbers = array.array("I", range(10))
        content = bytearray(100)
        with self.registered(content), self.registered(numbers):
            for change in (lambda: content.extend(b"more"), content.clear, lambda: numbers.append(1)):
                with self.assertRaises(BufferError):
                    change()  # type: ignore[no-untyped-call]
        content.extend(b"more")
        numbers.append(1)

    def test_what_is_registered_cannot_be_unmapped(self) -> None:
        mapped = mmap.mmap(-1, 4096)
        view = memoryview(bytearray(10))
        with self.registered(mapped), self.registered(view):
            for end in (mapped.close, view.release):
                with self.assertRaises(BufferError):
                    end()
        mapped.close()
        view.release()

    def test_it_is_kept_while_it_is_registered_and_no_longer(self) -> None:
        class Bytes(bytearray):
            pass

        content = Bytes(64)
        gone = weakref.ref(content)
        with self.registered(content) as region:
            del content
            gc.collect()
            kept = gone()
            assert kept is not None
            self.assertEqual(ctypes.addressof(ctypes.c_char.from_buffer(kept)), region.address)
            del kept
        gc.collect()
        self.assertIsNone(gone())

    def test_it_is_kept_until_the_last_of_its_registrations_ends(self) -> None:
        memory = bytearray(4096)
        first, second = (self.engine.register(memory, "twice") for _ in range(2))
        self.assertIsNone(first.deregister())
        with self.assertRaises(BufferError):
            memory.extend(b"x")
        self.assertIsNone(second.deregister())
        memory.extend(b"x")

    def test_it_is_kept_by_each_region_that_it_is(self) -> None:
        memory = bytearray(4096)
        regions = [self.engine.register(memory, label) for label in ("one", "other")]
        regions.append(self.engine.register(memory, "one", rights="r"))
        for region in regions:
            with self.assertRaises(BufferError):
                memory.extend(b"x")
            self.assertIsNone(region.deregister())
        memory.extend(b"x")

    def test_references_are_given_back(self) -> None:
        content = bytearray(64)
        before = sys.getrefcount(content)
        for _ in range(200):
            with self.registered(content):
                pass
            self.refused(memoryview(content)[::2], "contiguous")
        gc.collect()
        self.assertEqual(sys.getrefcount(content), before)

    def test_gaps_are_refused_and_not_copied(self) -> None:
        view = memoryview(bytearray(100))
        for gaps in (view[::2], view[::-1]):
            self.refused(gaps, r"`memoryview` is not contiguous.*does not copy")

    def test_other_objects_are_refused_in_words(self) -> None:
        for other in ("text", [1, 2, 3], 5, None, object(), self.engine):
            self.refused(other, r"has no memory.*buffer protocol.*torch.*__dlpack__")
        self.refused("text", "`str`")

    def test_nothing_is_no_memory(self) -> None:
        for empty in (bytearray(), b"", memoryview(bytearray(5))[3:3], array.array("q")):
            self.refused(empty, "is empty")

    def test_a_view_that_was_released_is_refused(self) -> None:
        view = memoryview(bytearray(10))
        view.release()
        error = self.refused(view, "released")
        self.assertIsInstance(error.__cause__, ValueError)

    def test_what_is_raised_by_others_than_errors_goes_on(self) -> None:
        class Interrupted:
            def __dlpack_device__(self) -> tuple[int, int]:
                return (1, 0)

            def __dlpack__(self, **_: object) -> object:
                raise KeyboardInterrupt

        with self.assertRaises(KeyboardInterrupt):
            self.engine.register(Interrupted())

    def test_a_program_ends_with_memory_registered(self) -> None:
        program = """if True:
            import penstock
            engine = penstock.Engine("exits")
            content = bytearray(4096)
            region = engine.register(content)
        """
        ended = subprocess.run([sys.executable, "-X", "faulthandler", "-c", program], capture_output=True, timeout=20)
        self.assertEqual((ended.returncode, ended.stderr), (0, b""))


class Numpy(WithEngine):
    def setUp(self) -> None:
        super().setUp()
        self.numpy = needs(self, "numpy")

    def test_arrays_are_taken_as_they_lie(self) -> None:
        numpy = self.numpy
        whole = numpy.zeros((6, 5), dtype="float32")
        for memory in (
            whole,
            whole.T,
            numpy.asfortranarray(whole),
            whole[2:4],
            numpy.zeros((), dtype="int64"),
            numpy.zeros(3, dtype="datetime64[s]"),
            numpy.zeros(3, dtype=[("key", "u8"), ("value", "f4")]),
            numpy.zeros((3, 1, 2), dtype=bool)[:, :, :],
            numpy.zeros(5, dtype=">i4"),
        ):
            with self.subTest(dtype=memory.dtype, shape=memory.shape), self.registered(memory) as region:
                self.assertEqual((region.address, region.bytes), (memory.ctypes.data, memory.nbytes))

    def test_arrays_of_objects_are_refused(self) -> None:
        for kind in (object, [("number", "u8"), ("object", object)]):
            self.refused(self.numpy.zeros(8, dtype=kind), "holds references")

    def test_arrays_with_gaps_are_refused(self) -> None:
        numpy = self.numpy
        whole = numpy.zeros((6, 5))
        for gaps in (whole[:, 1:], whole[::2], whole[::-1], numpy.broadcast_to(numpy.zeros(3), (4, 3))):
            self.refused(gaps, r"`numpy.ndarray` is not contiguous.*numpy\.ascontiguousarray\(\) copies")

    def test_read_only_ones_can_be_read(self) -> None:
        memory = self.numpy.arange(10)
        memory.flags.writeable = False
        with self.registered(memory, rights="r") as region:
            self.assertEqual(region.address, memory.ctypes.data)
        with self.assertRaises(penstock.AccessDenied):
            self.engine.register(memory)

    def test_they_cannot_be_resized(self) -> None:
        memory = self.numpy.zeros(10)
        with self.registered(memory), self.assertRaises(ValueError):
            memory.resize(1000)


class Torch(WithEngine):
    def setUp(self) -> None:
        super().setUp()
        self.torch = needs(self, "torch")

    def test_tensors_are_taken_as_they_lie(self) -> None:
        torch = self.torch
        for memory in (
            torch.zeros(6, 5),
            torch.zeros(6, 5)[2:4],
            torch.zeros(4, dtype=torch.bfloat16),
            torch.zeros((), dtype=torch.int64),
            torch.zeros(3, dtype=torch.bool),
            torch.zeros(3, requires_grad=True),
            torch.nn.Parameter(torch.zeros(3)),
        ):
            with self.subTest(memory=memory), self.registered(memory) as region:
                size = memory.numel() * memory.element_size()
                self.assertEqual((region.address, region.bytes), (memory.data_ptr(), size))

    def test_those_that_are_not_one_block_are_refused(self) -> None:
        torch = self.torch
        for gaps in (torch.zeros(6, 5).t(), torch.zeros(6, 5)[:, 1:], torch.zeros(1).expand(5)):
            self.refused(gaps, r"not contiguous.*\.contiguous\(\) copies")
        self.refused(torch.zeros(6, 5).to_sparse(), "layout")
        self.refused(torch.zeros(0), "is empty")

    def test_tensors_elsewhere_are_refused(self) -> None:
        self.refused(self.torch.zeros(3, device="meta"), "only memory of the host and of CUDA", penstock.Unsupported)

    def test_the_memory_stays_if_the_tensor_is_given_another(self) -> None:
        torch = self.torch
        memory = torch.full((1 << 16,), 7, dtype=torch.uint8)
        with self.registered(memory) as region:
            memory.set_(torch.zeros(3, dtype=torch.uint8))
            self.assertEqual(ctypes.string_at(region.address, region.bytes), bytes([7]) * region.bytes)

    def test_its_storage_cannot_be_resized(self) -> None:
        needs(self, "numpy")
        memory = self.torch.zeros(10)
        with self.registered(memory):
            for resize in (lambda: memory.resize_(1 << 20), lambda: memory.untyped_storage().resize_(0)):
                with self.assertRaises(RuntimeError):
                    resize()  # type: ignore[no-untyped-call]


class FakeTorch(WithEngine):
    """Tensors as torch has them, so that they are tried also where there is no torch."""

    def tensor(self, **fields: Any) -> Any:
        content = bytearray(64)
        held = ctypes.c_char.from_buffer(content)

        class Device:
            type = fields.get("device", "cpu")

            def __str__(self) -> str:
                return f"{self.type}:1"

        class Tensor:
            device = Device()
            layout = fields.get("layout", "torch.strided")
            kept = held

            def is_contiguous(self) -> bool:
                return bool(fields.get("is_contiguous", True))

            def detach(self) -> Any:
                return self

            def data_ptr(self) -> int:
                if fields.get("is_fake"):
                    raise RuntimeError("no storage")
                return ctypes.addressof(held)

            def numel(self) -> int:
                return int(fields.get("numel", 16))

            def element_size(self) -> int:
                return 4

        Tensor.__module__ = "torch"
        return type("Parameter", (Tensor,), {})()

    def test_one_on_the_cpu_is_taken(self) -> None:
        tensor = self.tensor()
        gone = weakref.ref(tensor)
        with self.registered(tensor) as region:
            self.assertEqual((region.address, region.bytes), (tensor.data_ptr(), 64))
            del tensor
            gc.collect()
            self.assertIsNotNone(gone())
        gc.collect()
        self.assertIsNone(gone())

    def test_others_are_refused(self) -> None:
        self.refused(self.tensor(device="cuda"), "`cuda:1`: `register_device` takes its memory")
        self.refused(self.tensor(device="xpu"), "`xpu:1`: only memory of the host and of CUDA", penstock.Unsupported)
        self.refused(self.tensor(layout="torch.sparse_coo"), "torch.sparse_coo")
        self.refused(self.tensor(is_contiguous=False), r"not contiguous.*\.contiguous\(\) copies")
        self.refused(self.tensor(is_fake=True), "does not give its memory: no storage")
        self.refused(self.tensor(numel=0), "is empty")


class Imports(unittest.TestCase):
    def test_neither_torch_nor_numpy_is_imported(self) -> None:
        program = """if True:
            import sys
            import penstock
            with penstock.Engine("light") as engine:
                engine.register(bytearray(64)).deregister()
                try:
                    engine.register("no memory")
                except penstock.InvalidArgument:
                    pass
            print([name for name in ("torch", "numpy") if name in sys.modules])
        """
        ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=20)
        self.assertEqual((ran.stdout.strip(), ran.stderr), ("[]", ""))


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("dimensions", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Unversioned(ctypes.Structure):
    _fields_ = [("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", DELETER)]


class Versioned(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint32 * 2),
        ("context", ctypes.c_void_p),
        ("deleter", DELETER),
        ("flags", ctypes.c_uint64),
        ("tensor", DLTensor),
    ]


NEW_CAPSULE = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)
CAPSULE_NAME = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(("PyCapsule_GetName", ctypes.pythonapi))


class Exporter:
    """An object with DLPack, by hand."""

    def __init__(
        self,
        shape: tuple[int, ...],
        strides: tuple[int, ...] | None = None,
        *,
        bits: int = 32,
        lanes: int = 1,
        device: int = 1,
        version: tuple[int, int] | None = (1, 0),
        flags: int = 0,
        offset: int = 0,
        data: int | None = None,
    ) -> None:
        self.content = ctypes.create_string_buffer(1 << 12)
        data = ctypes.addressof(self.content) if data is None else data
        self.address = data + offset
        self.deleted = 0
        self.asked: list[dict[str, Any]] = []
        self.version = version
        self.device = device
        self.shape = (ctypes.c_int64 * len(shape))(*shape)
        self.strides = None if strides is None else (ctypes.c_int64 * len(strides))(*strides)
        tensor = DLTensor(
            data=data,
            device=(device, 0),
            dimensions=len(shape),
            bits=bits,
            lanes=lanes,
            shape=self.shape,
            strides=self.strides,
            byte_offset=offset,
        )
        deleter = DELETER(self.delete)
        self.managed: Unversioned | Versioned
        if version is None:
            self.managed, self.name = Unversioned(tensor=tensor, deleter=deleter), b"dltensor"
        else:
            self.managed = Versioned(version=version, flags=flags, tensor=tensor, deleter=deleter)
            self.name = b"dltensor_versioned"

    def delete(self, address: int) -> None:
        assert address == ctypes.addressof(self.managed)
        self.deleted += 1

    def __dlpack_device__(self) -> tuple[int, int]:
        return (self.device, 0)

    def __dlpack__(self, **asked: Any) -> object:
        self.asked.append(asked)
        if self.version is None and asked.keys() - {"stream"}:
            raise TypeError("unexpected keyword argument")
        self.capsule = NEW_CAPSULE(ctypes.addressof(self.managed), self.name, None)
        return self.capsule


class DLPack(WithEngine):
    def test_a_tensor_is_taken_and_deleted_once(self) -> None:
        for version, used in [
            ((1, 0), b"used_dltensor_versioned"),
            ((1, 9), b"used_dltensor_versioned"),
            (None, b"used_dltensor"),
        ]:
            exporter = Exporter((4, 6), (6, 1), version=version, offset=64)
            with self.subTest(version=version):
                with self.registered(exporter) as region:
                    self.assertEqual((region.address, region.bytes), (exporter.address, 96))
                    self.assertEqual(CAPSULE_NAME(exporter.capsule), used)
                    self.assertEqual(exporter.deleted, 0)
                gc.collect()
                self.assertEqual(exporter.deleted, 1)

    def test_no_copy_is_asked_for(self) -> None:
        exporter = Exporter((4,))
        with self.registered(exporter):
            (asked,) = exporter.asked
            self.assertIs(asked["copy"], False)
            self.assertEqual(asked["max_version"][0], 1)
        older = Exporter((4,), version=None)
        with self.registered(older):
            self.assertEqual(older.asked[-1], {})

    def test_sizes(self) -> None:
        for exporter, size in [
            (Exporter((4, 6)), 96),
            (Exporter(()), 4),
            (Exporter((5,), bits=16), 10),
            (Exporter((5,), bits=8, lanes=4), 20),
            (Exporter((5,), bits=4), 3),
            (Exporter((5,), bits=4, flags=4), 5),
            (Exporter((4, 6), (1, 4)), 96),
            (Exporter((1, 6), (100, 1)), 24),
            (Exporter((4, 1, 6), (6, 77, 1)), 96),
        ]:
            with self.registered(exporter) as region:
                self.assertEqual(region.bytes, size)

    def test_read_only_ones_can_be_read(self) -> None:
        with self.registered(Exporter((4,), flags=1), rights="r") as region:
            self.assertEqual(region.bytes, 16)
        exporter = Exporter((4,), flags=1)
        with self.assertRaises(penstock.AccessDenied):
            self.engine.register(exporter)
        self.assertEqual(exporter.deleted, 1)

    def test_what_is_refused_stays_in_its_capsule(self) -> None:
        for exporter, words in [
            (Exporter((4, 6), (8, 1)), "not contiguous"),
            (Exporter((4,), (-1,)), "not contiguous"),
            (Exporter((4,), (0,)), "not contiguous"),
            (Exporter((-4,)), "makes no sense"),
            (Exporter((1 << 62, 1 << 62)), "makes no sense"),
            (Exporter((4,), version=(2, 0)), "version 2.0"),
        ]:
            self.refused(exporter, words)
            self.assertEqual((CAPSULE_NAME(exporter.capsule), exporter.deleted), (exporter.name, 0))
        empty = Exporter((4, 0))
        self.refused(empty, "is empty")
        self.assertEqual(empty.deleted, 1)

    def test_memory_elsewhere_is_refused_before_it_is_asked_for(self) -> None:
        exporter = Exporter((4,), device=2)
        self.refused(exporter, r"\(2, 0\): `register_device` takes its memory")
        self.assertEqual(exporter.asked, [])
        exporter = Exporter((4,), device=10)
        self.refused(exporter, r"\(10, 0\): only memory of the host and of CUDA devices", penstock.Unsupported)
        self.assertEqual(exporter.asked, [])
        self.refused(type("Array", (), {"__cuda_array_interface__": {}})(), "`register_device` takes its memory")

    def test_what_gives_no_tensor_is_refused(self) -> None:
        class Other:
            def __init__(self, gives: Callable[[], object]) -> None:
                self.gives = gives

            def __dlpack_device__(self) -> tuple[int, int]:
                return (1, 0)

            def __dlpack__(self, **_: object) -> object:
                return self.gives()

        exporter = Exporter((4,))
        with self.registered(exporter):
            for gives, words in [
                (lambda: None, "no capsule"),
                (lambda: exporter.capsule, "no capsule"),
                (lambda: 1 // 0, "division"),
            ]:
                self.refused(Other(gives), words)

    def test_numpy_s_own_is_taken(self) -> None:
        numpy = needs(self, "numpy")

        class Wrapped:
            def __init__(self) -> None:
                self.array = numpy.zeros((3, 4), dtype="float32")

            def __dlpack_device__(self) -> Any:
                return self.array.__dlpack_device__()

            def __dlpack__(self, **asked: Any) -> Any:
                return self.array.__dlpack__(**asked)

        wrapped = Wrapped()
        before = sys.getrefcount(wrapped.array)
        with self.registered(wrapped) as region:
            self.assertEqual((region.address, region.bytes), (wrapped.array.ctypes.data, 48))
            self.assertGreater(sys.getrefcount(wrapped.array), before)
        self.assertEqual(sys.getrefcount(wrapped.array), before)


class Pools(WithEngine):
    """Memory of a pool, as Python sees it."""

    def test_it_is_bytes_in_a_row(self) -> None:
        pool = self.engine.pool(1 << 16)
        view = memoryview(pool)
        self.assertEqual((view.format, view.itemsize, view.ndim), ("B", 1, 1))
        self.assertEqual((view.shape, view.strides), ((1 << 16,), (1,)))
        self.assertTrue(view.contiguous)
        self.assertFalse(view.readonly)
        self.assertIs(view.obj, pool)
        view[5] = 7
        self.assertEqual(bytes(memoryview(pool)[4:7]), b"\0\7\0")

    def test_views_keep_it(self) -> None:
        pool = self.engine.pool(1 << 16)
        before = sys.getrefcount(pool)
        views = [memoryview(pool) for _ in range(100)]
        self.assertGreater(sys.getrefcount(pool), before)
        views.clear()
        self.assertEqual(sys.getrefcount(pool), before)

    def test_numpy_writes_into_it(self) -> None:
        numpy = needs(self, "numpy")
        pool = self.engine.pool(1 << 16)
        seen = numpy.frombuffer(pool, dtype="uint64")
        seen[3] = 5
        self.assertEqual(memoryview(pool)[24], 5)
        self.assertEqual(pool.numpy("uint64")[3], 5)

    def test_torch_writes_into_it(self) -> None:
        torch = needs(self, "torch")
        pool = self.engine.pool(1 << 16)
        pool.torch(dtype=torch.uint8)[3] = 5
        self.assertEqual(memoryview(pool)[3], 5)


if __name__ == "__main__":
    unittest.main()
