"""Memory of a CUDA device: which is taken, what is refused, and what keeps it, on a stand-in for the driver."""

import array
import contextlib
import ctypes
import gc
import mmap
import os
import pathlib
import signal
import subprocess
import sys
import time
import types
import unittest
import unittest.mock
import weakref
from collections.abc import Iterator
from typing import Any, ClassVar

import penstock
from test_memory import CAPSULE_NAME, Exporter

SIZE = 1 << 16
PATTERN = bytes(range(256)) * (SIZE // 256)
# Memory that streams are held by.
KEPT: list[Any] = []


def setUpModule() -> None:
    if "PENSTOCK_CUDA_DRIVER" not in os.environ:
        raise unittest.SkipTest("needs PENSTOCK_CUDA_DRIVER, the stand-in for the driver")


class Driver:
    """What allocates device memory: the library that the engine opens, too."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL(os.environ["PENSTOCK_CUDA_DRIVER"])
        context = ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxPushCurrent", context)

    def call(self, name: str, *arguments: Any) -> None:
        place = ctypes.c_void_p()
        self.library.cuGetProcAddress_v2(name.encode(), ctypes.byref(place), 12000, ctypes.c_uint64(0), None)
        assert place.value, name
        answered = ctypes.CFUNCTYPE(ctypes.c_uint)(place.value)(*arguments)
        assert answered == 0, (name, answered)

    def allocate(self, size: int) -> int:
        address = ctypes.c_uint64()
        self.call("cuMemAlloc", ctypes.byref(address), ctypes.c_size_t(size))
        return address.value

    def free(self, address: int) -> None:
        self.call("cuMemFree", ctypes.c_uint64(address))

    def stream(self) -> int:
        stream = ctypes.c_void_p()
        self.call("cuStreamCreate", ctypes.byref(stream), 1)
        assert stream.value
        return stream.value

    def read(self, address: int, size: int) -> bytes:
        content = ctypes.create_string_buffer(size)
        self.call("cuMemcpyDtoH", content, ctypes.c_uint64(address), ctypes.c_size_t(size))
        return content.raw


class Held:
    """A stream that does nothing until it is let go, and then fills memory with `byte`."""

    def __init__(self, driver: Driver, address: int, stream: int, byte: int = 7) -> None:
        # It stays: the end of its registration would wait for the stream.
        self.memory = (ctypes.c_char * (SIZE + 8)).from_buffer(mmap.mmap(-1, SIZE + 4096))
        place = ctypes.addressof(self.memory)
        driver.call("cuMemHostRegister", ctypes.c_void_p(place), ctypes.c_size_t(SIZE + 4096), 0)
        ctypes.memset(place, byte, SIZE)
        handle, word = ctypes.c_void_p(stream), ctypes.c_uint64(place + SIZE)
        driver.call("cuStreamWaitValue64", handle, word, ctypes.c_uint64(1), 0)
        if stream > 2:
            size = ctypes.c_size_t(SIZE)
            driver.call("cuMemcpyHtoDAsync", ctypes.c_uint64(address), ctypes.c_void_p(place), size, handle)
        KEPT.append(self.memory)

    def let_go(self) -> None:
        self.memory[SIZE] = b"\1"


@contextlib.contextmanager
def stopped_card() -> Iterator[None]:
    """The process that executes what streams are given does nothing meanwhile."""
    children = []
    for task in pathlib.Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # A thread that has ended meanwhile.
            children += (task / "children").read_text().split()
    (card,) = (int(pid) for pid in children if "penstock-cuda" in pathlib.Path("/proc", pid, "comm").read_text())
    os.kill(card, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(card, signal.SIGCONT)


class Array:
    """An array on a device, as cupy and numba have it."""

    def __init__(self, address: int, shape: tuple[int, ...], is_readonly: bool = False, **more: Any) -> None:
        described = {"shape": shape, "typestr": "<f4", "data": (address, is_readonly), "version": 3}
        self.__cuda_array_interface__ = described | more


class WithDevice(unittest.TestCase):
    driver: ClassVar[Driver]
    address: ClassVar[int]

    @classmethod
    def setUpClass(cls) -> None:
        cls.driver = Driver()
        cls.address = cls.driver.allocate(SIZE)

    @classmethod
    def tearDownClass(cls) -> None:
        cls.driver.free(cls.address)

    def setUp(self) -> None:
        self.engine = penstock.Engine("device")
        self.addCleanup(self.engine.close)

    def array(self, shape: tuple[int, ...] = (SIZE // 4,), is_readonly: bool = False, **more: Any) -> Array:
        return Array(self.address, shape, is_readonly, **more)

    def taken(self, memory: Any, size: int) -> None:
        region = self.engine.register_device(memory)
        self.assertEqual((region.address, region.bytes), (self.address, size))
        self.assertIsNone(region.deregister())

    def refused(self, memory: Any, words: str, kind: type[penstock.Error] = penstock.InvalidArgument) -> None:
        with self.assertRaisesRegex(kind, words) as raised:
            self.engine.register_device(memory)
        self.assertIs(type(raised.exception), kind)


class Transfers(WithDevice):
    def test_bytes_go_to_a_device_and_come_back(self) -> None:
        with penstock.Engine("host") as host:
            pool = host.pool(2 * SIZE)
            memoryview(pool)[:SIZE] = PATTERN
            region = self.engine.register_device(self.array(), "kv")
            self.assertEqual((region.label, region.rights), ("kv", "rw"))
            peer = host.connect(self.engine.descriptor())
            remote = peer.region("kv", timeout=5.0)
            peer.submit(peer.write_plan(pool, remote, extents=[(0, 0, SIZE)])).wait(timeout=5.0)
            self.assertEqual(self.driver.read(self.address, SIZE), PATTERN)
            peer.submit(peer.read_plan(pool, remote, extents=[(SIZE, 0, SIZE)])).wait(timeout=5.0)
            self.assertEqual(memoryview(pool)[SIZE:], PATTERN)
            self.assertIsNone(region.deregister())

    def test_what_is_read_only_is_not_written(self) -> None:
        memory = self.array(is_readonly=True)
        with self.assertRaises(penstock.AccessDenied):
            self.engine.register_device(memory)
        with penstock.Engine("host") as host:
            host.pool(SIZE, label="pool")
            region = self.engine.register_device(memory, rights="r")
            peer = self.engine.connect(host.descriptor())
            peer.region("pool", timeout=5.0)
            peer.write_plan(region, "pool", extents=[(0, 0, SIZE)])
            with self.assertRaises(penstock.AccessDenied):
                peer.read_plan(region, "pool", extents=[(0, 0, SIZE)])

    def test_host_memory_that_is_no_pool_goes_through_staging_memory(self) -> None:
        with penstock.Engine("host") as host:
            memory = bytearray(PATTERN)
            own = host.register(memory)
            self.engine.register_device(self.array(), "kv")
            peer = host.connect(self.engine.descriptor())
            remote = peer.region("kv", timeout=5.0)
            peer.submit(peer.write_plan(own, remote, extents=[(0, 0, SIZE)])).wait(timeout=5.0)
            self.assertEqual(self.driver.read(self.address, SIZE), PATTERN)
            memory[:] = bytes(SIZE)
            peer.submit(peer.read_plan(own, remote, extents=[(0, 0, SIZE)])).wait(timeout=5.0)
            self.assertEqual(memory, PATTERN)


class Arrays(WithDevice):
    def test_arrays_are_taken_as_they_lie(self) -> None:
        self.taken(self.array(), SIZE)
        self.taken(self.array((4, 6)), 96)
        self.taken(self.array((4, 6), strides=None), 96)
        self.taken(self.array((4, 6), strides=(24, 4)), 96)
        self.taken(self.array((4, 6), strides=(4, 16)), 96)
        self.taken(self.array((1, 6), strides=(1000, 4)), 24)
        self.taken(self.array(()), 4)
        self.taken(self.array((5,), typestr="|u1"), 5)
        self.taken(self.array((5,), typestr="<c16"), 80)
        self.taken(self.array((5,), typestr="|V2", descr=[("", "<V2")], stream=1), 10)

    def test_gaps_are_refused_and_not_copied(self) -> None:
        for strides in ((48, 4), (24, 8), (-24, 4), (0, 4)):
            self.refused(self.array((4, 6), strides=strides), "not contiguous.*does not copy")

    def test_what_has_no_bytes_or_no_sense_is_refused(self) -> None:
        self.refused(self.array((4, 0)), "is empty")
        self.refused(self.array((4, 0), strides=(4, 4)), "is empty")
        self.refused(self.array((-4,)), "shape that makes no sense")
        self.refused(self.array((1 << 62, 1 << 62)), "shape that makes no sense")
        self.refused(self.array((1 << 62,)), "shape that makes no sense")
        self.refused(self.array((4,), strides=(4, 4)), "do not fit its shape")
        self.refused(self.array((4,), mask=self.array((4,))), "has a mask")
        self.refused(self.array((4,), data=None), "has no `data`")
        self.refused(self.array((4,), data="there"), "makes no sense: ")
        for kind in ("|O8", "<U4", "|t3", "<f", "f4", "<f-4", ""):
            self.refused(self.array((4,), typestr=kind), "has elements of type")
        self.refused(type("Odd", (), {"__cuda_array_interface__": 5})(), "is no dictionary")

    def test_an_array_that_does_not_say_where_it_is_is_refused(self) -> None:
        class Tracked:
            @property
            def __cuda_array_interface__(self) -> Any:
                raise RuntimeError("it requires grad")

        self.refused(Tracked(), "does not give its memory: it requires grad")

    def test_it_is_kept_while_it_is_registered_and_no_longer(self) -> None:
        memory = self.array()
        gone = weakref.ref(memory)
        first, second = (self.engine.register_device(memory, "twice") for _ in range(2))
        del memory
        self.assertIsNone(first.deregister())
        gc.collect()
        self.assertIsNotNone(gone())
        self.assertIsNone(second.deregister())
        gc.collect()
        self.assertIsNone(gone())


    def test_it_is_kept_while_a_device_that_is_stopped_may_touch_it(self) -> None:
        memory = self.array()
        gone = weakref.ref(memory)
        region = self.engine.register_device(memory, "kv")
        del memory
        with penstock.Engine("host") as host:
            pool = host.pool(SIZE)
            peer = host.connect(self.engine.descriptor())
            plan = peer.read_plan(pool, peer.region("kv", timeout=5.0), extents=[(0, 0, SIZE)])
            with stopped_card():
                with self.assertRaises(penstock.Deadline):
                    peer.submit(plan, timeout=0.1).wait()
                held = region.deregister(timeout=0.05)
                assert held is not None
                gc.collect()
                self.assertFalse(held.released)
                self.assertIsNotNone(gone())
            end = time.monotonic() + 10
            while not held.released and time.monotonic() < end:
                time.sleep(0.01)
            self.assertTrue(held.released)
            del held
            gc.collect()
            self.assertIsNone(gone())


class Others(WithDevice):
    def test_an_address_is_taken(self) -> None:
        self.taken((self.address, 100), 100)
        self.refused((self.address, 0), "has no bytes")
        self.refused((self.address,), "is not \\(address, bytes\\)")
        self.refused((self.address, -1), "negative")
        self.refused((self.address, "100"), "not an int")

    def test_what_is_no_memory_of_a_device_is_refused(self) -> None:
        host = ctypes.create_string_buffer(64)
        self.refused((ctypes.addressof(host), 64), "knows no memory.*or is host memory", penstock.NotMapped)
        self.refused((self.address, 1 << 40), "leave their allocation", penstock.NotMapped)
        freed = self.driver.allocate(SIZE)
        self.driver.free(freed)
        self.refused(Array(freed, (4,)), "it was freed", penstock.NotMapped)

    def test_host_memory_is_for_register(self) -> None:
        for memory in (bytearray(8), array.array("d", [1.0]), Exporter((4,))):
            self.refused(memory, "`register` takes its memory")
        self.refused("text", "`str` has no memory of a CUDA device; give")
        self.refused(Exporter((4,), device=13), "only memory of the host and of CUDA devices", penstock.Unsupported)

    def test_dlpack_s_tensors_are_taken_behind_the_default_stream(self) -> None:
        for version in ((1, 0), None):
            exporter = Exporter((4, 6), (6, 1), device=2, data=self.address, version=version)
            self.taken(exporter, 96)
            self.assertEqual([asked["stream"] for asked in exporter.asked], [1] * len(exporter.asked))
            self.assertEqual(CAPSULE_NAME(exporter.capsule), b"used_" + exporter.name)
            gc.collect()
            self.assertEqual(exporter.deleted, 1)
        self.refused(Exporter((4, 6), (8, 1), device=2, data=self.address), "not contiguous")
        elsewhere = Exporter((4,), data=self.address)
        elsewhere.device = 2
        self.refused(elsewhere, "on another device than")

    def test_torch_s_tensors_are_taken(self) -> None:
        address = self.address

        class Device:
            def __init__(self, kind: str) -> None:
                self.type = kind

            def __str__(self) -> str:
                return f"{self.type}:0"

        class Tensor:
            layout = "torch.strided"

            def __init__(self, kind: str) -> None:
                self.device = Device(kind)

            def is_contiguous(self) -> bool:
                return True

            def detach(self) -> Any:
                return self

            def data_ptr(self) -> int:
                return address

            def numel(self) -> int:
                return 16

            def element_size(self) -> int:
                return 2

        Tensor.__module__ = "torch"
        tensor = Tensor("cuda")
        gone = weakref.ref(tensor)
        self.taken(tensor, 32)
        del tensor
        gc.collect()
        self.assertIsNone(gone())
        self.refused(Tensor("cpu"), "`cpu:0`: `register` takes its memory")
        self.refused(Tensor("meta"), "only memory of the host and of CUDA", penstock.Unsupported)


class Streams(WithDevice):
    """Copies behind what a stream has when memory is registered, or when a program asks for it."""

    def setUp(self) -> None:
        super().setUp()
        self.host = penstock.Engine("host")
        self.addCleanup(self.host.close)
        self.pool = self.host.pool(SIZE)
        self.peer = self.host.connect(self.engine.descriptor())
        self.label = "k"

    def register(self, memory: Any, stream: Any = None) -> penstock.Region:
        # Of a label that is used again peers hear later.
        self.label += "v"
        return self.engine.register_device(memory, self.label, stream=stream)

    def held(self, handle: int, byte: int = 7) -> Held:
        held = Held(self.driver, self.address, handle, byte)
        self.addCleanup(held.let_go)
        return held

    def read(self) -> penstock.Transfer:
        memoryview(self.pool)[:] = bytes(SIZE)
        plan = self.peer.read_plan(self.pool, self.peer.region(self.label, timeout=5.0), extents=[(0, 0, SIZE)])
        return self.peer.submit(plan, timeout=10.0)

    def assert_behind(self, held: Held, byte: int | None = 7) -> None:
        """What is submitted now waits for the stream, and brings what that makes."""
        transfer = self.read()
        time.sleep(0.05)
        self.assertIsNone(transfer.poll())
        self.assertEqual(memoryview(self.pool), bytes(SIZE))
        held.let_go()
        transfer.wait(timeout=5.0)
        if byte is not None:
            self.assertEqual(memoryview(self.pool), bytes([byte]) * SIZE)

    def test_an_array_s_stream_is_what_it_says(self) -> None:
        stream = self.driver.stream()
        held = self.held(stream)
        self.register(self.array(stream=stream))
        self.assert_behind(held)
        for other in (None, 1, 2):
            self.assertIsNone(self.engine.register_device(self.array(stream=other)).deregister())
        self.refused(self.array(stream=0), "has stream 0, which the protocol forbids")
        self.refused(self.array(stream="one"), "makes no sense")
        self.refused(self.array(stream=4711), "has no stream 0x1267")

    def test_a_torch_tensor_s_stream_is_torch_s_current_one(self) -> None:
        address, stream, asked = self.address, self.driver.stream(), []

        class Tensor:
            layout = "torch.strided"
            device = types.SimpleNamespace(type="cuda")

            def is_contiguous(self) -> bool:
                return True

            def detach(self) -> Any:
                return self

            def data_ptr(self) -> int:
                return address

            def numel(self) -> int:
                return SIZE

            def element_size(self) -> int:
                return 1

        def current_stream(device: Any) -> Any:
            asked.append(device)
            return types.SimpleNamespace(cuda_stream=stream)

        Tensor.__module__ = "torch"
        torch: Any = types.ModuleType("torch")
        torch.cuda = types.SimpleNamespace(current_stream=current_stream)
        with unittest.mock.patch.dict(sys.modules, {"torch": torch}):
            held = self.held(stream)
            self.register(Tensor())
            self.assert_behind(held)
        self.assertEqual(asked, [Tensor.device])

        def broken(device: Any) -> Any:
            raise RuntimeError("no context")

        torch.cuda = types.SimpleNamespace(current_stream=broken)
        with unittest.mock.patch.dict(sys.modules, {"torch": torch}):
            self.refused(Tensor(), "torch does not say which stream it works with: no context")

    def test_the_default_streams(self) -> None:
        for number in (1, 2):
            held = self.held(number)
            region = self.register(self.array(stream=number))
            self.assert_behind(held, None)
            self.assertIsNone(region.deregister())

    def test_no_stream_holds_nothing_up(self) -> None:
        held = self.held(self.driver.stream())
        for memory, stream in ((self.array(), None), (self.array(stream=1), -1), ((self.address, SIZE), None)):
            region = self.register(memory, stream=stream)
            self.read().wait(timeout=5.0)
            self.assertIsNone(region.deregister())
        held.let_go()

    def test_a_program_names_another_stream(self) -> None:
        for memory in (self.array(stream=1), (self.address, SIZE)):
            stream = self.driver.stream()
            held = self.held(stream)
            region = self.register(memory, stream=stream)
            self.assert_behind(held)
            self.assertIsNone(region.deregister())

    def test_dlpack_puts_its_work_before_the_stream_that_it_is_given(self) -> None:
        driver, own = self.driver, self.driver.stream()

        class Ordered(Exporter):
            def __dlpack__(self, **asked: Any) -> object:
                event = ctypes.c_void_p()
                driver.call("cuEventCreate", ctypes.byref(event), 2)
                driver.call("cuEventRecord", event, ctypes.c_void_p(own))
                driver.call("cuStreamWaitEvent", ctypes.c_void_p(asked["stream"]), event, 0)
                return super().__dlpack__(**asked)

        for stream in (None, self.driver.stream()):
            held = self.held(own)
            tensor: Exporter = Ordered((SIZE // 4,), device=2, data=self.address)
            region = self.register(tensor, stream=stream)
            self.assertEqual([asked["stream"] for asked in tensor.asked], [stream or 1])
            self.assert_behind(held)
            self.assertIsNone(region.deregister())
        tensor = Exporter((SIZE // 4,), device=2, data=self.address)
        self.register(tensor, stream=-1)
        self.assertEqual([asked["stream"] for asked in tensor.asked], [-1])

    def test_copies_are_ordered_when_a_program_asks_for_it(self) -> None:
        region = self.register(self.array())

        class Torch:
            def __init__(self, handle: int) -> None:
                self.cuda_stream = handle

        class Cupy:
            def __init__(self, handle: int) -> None:
                self.ptr = handle

        class Protocol:
            def __init__(self, handle: int) -> None:
                self.handle = handle

            def __cuda_stream__(self) -> tuple[int, int]:
                return (0, self.handle)

        kinds: tuple[Any, ...] = (Torch, Cupy, Protocol, int)
        for byte, kind in enumerate(kinds, 1):
            handle = self.driver.stream()
            held = self.held(handle, byte)
            region.order_behind(kind(handle))
            self.assert_behind(held, byte)
        region.order_behind(Torch(0))
        region.order_behind(-1)
        for wrong, words in ((0, "names no stream"), (-2, "names no stream"), ("one", "`str` is no stream")):
            with self.assertRaisesRegex(penstock.InvalidArgument, words):
                region.order_behind(wrong)
        with self.assertRaisesRegex(penstock.InvalidArgument, "has no stream"):
            region.order_behind(4711)
        with self.assertRaises(penstock.Error):
            self.pool.order_behind(1)

    def test_a_stream_that_does_not_go_on_ends_in_time(self) -> None:
        stream = self.driver.stream()
        held = self.held(stream)
        self.register(self.array(stream=stream))
        plan = self.peer.read_plan(self.pool, self.peer.region(self.label, timeout=5.0), extents=[(0, 0, SIZE)])
        with self.assertRaises(penstock.Deadline):
            self.peer.submit(plan, timeout=0.05).wait()
        held.let_go()


class WithoutDriver(unittest.TestCase):
    def test_all_else_works_without_a_driver(self) -> None:
        program = """if True:
            import penstock
            with penstock.Engine("alone") as engine:
                try:
                    engine.register_device((4096, 64))
                except penstock.Unsupported as error:
                    print(error.code, error.remedy)
                    print(error)
                engine.register(bytearray(64)).deregister()
        """
        for driver, pretends, words in [
            ("/nowhere/libcuda.so.1", "", "install the NVIDIA driver"),
            (os.environ["PENSTOCK_CUDA_DRIVER"], "devices=0", "CUDA_VISIBLE_DEVICES"),
        ]:
            environment = os.environ | {"PENSTOCK_CUDA_DRIVER": driver, "PENSTOCK_CUDA_STAND_IN": pretends}
            command = [sys.executable, "-W", "error", "-c", program]
            ran = subprocess.run(command, capture_output=True, text=True, timeout=20, env=environment)
            self.assertEqual((ran.returncode, ran.stderr), (0, ""))
            code, text = ran.stdout.split("\n", 1)
            self.assertIn("59 see what `penstock doctor gpu` says", code)
            self.assertIn(words, text)


if __name__ == "__main__":
    unittest.main()
