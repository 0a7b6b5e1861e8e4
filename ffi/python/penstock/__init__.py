"""Penstock: moves blocks of memory between processes and hosts.

    import penstock

    # The side that has memory.
    with penstock.Engine("decode-0") as engine:
        pool = engine.pool(1 << 30, block=65536, label="kv")
        card = engine.descriptor()              # send it to the other side

    # The side that moves bytes.
    with penstock.Engine("prefill-0") as engine:
        kv = engine.register(array, "mine")     # numpy, torch, anything with a buffer
        peer = engine.connect(card)
        plan = peer.write_plan(kv, "kv", blocks=[(0, 7), (1, 3)])
        peer.submit(plan, notify=(1, b"layer 0")).wait()

What fails raises `penstock.Error` or a subclass of it; `python -m penstock` says what is installed.
"""

import atexit as _atexit
import os as _os
import threading as _threading

from ._penstock import (
    AccessDenied,
    BadConfig,
    Blocks,
    Cancel,
    Cancelled,
    Closed,
    Completed,
    Counter,
    Deadline,
    DeviceFailed,
    Draining,
    Engine,
    Error,
    Forked,
    Full,
    Internal,
    InvalidArgument,
    NetworkFailed,
    NotFound,
    NotMapped,
    NotReady,
    NotStarted,
    Notification,
    Notifications,
    OutOfBounds,
    OutOfMemory,
    Peer,
    PeerClosed,
    PeerLost,
    Plan,
    Pool,
    Quarantine,
    Refused,
    Region,
    RemoteCounter,
    RemoteRegion,
    Revoked,
    TimedOut,
    Transfer,
    Unreachable,
    Unsupported,
    WrongThread,
    _begin_log,
    _close_all,
    _forget_all,
    _set_main_thread,
    abi,
    library_path,
    message,
    set_log_level,
    version,
)

__version__ = version()

__all__ = [
    "AccessDenied",
    "BadConfig",
    "Blocks",
    "Cancel",
    "Cancelled",
    "Closed",
    "Completed",
    "Counter",
    "Deadline",
    "DeviceFailed",
    "Draining",
    "Engine",
    "Error",
    "Forked",
    "Full",
    "Internal",
    "InvalidArgument",
    "NetworkFailed",
    "NotFound",
    "NotMapped",
    "NotReady",
    "NotStarted",
    "Notification",
    "Notifications",
    "OutOfBounds",
    "OutOfMemory",
    "Peer",
    "PeerClosed",
    "PeerLost",
    "Plan",
    "Pool",
    "Quarantine",
    "Refused",
    "Region",
    "RemoteCounter",
    "RemoteRegion",
    "Revoked",
    "TimedOut",
    "Transfer",
    "Unreachable",
    "Unsupported",
    "WrongThread",
    "abi",
    "library_path",
    "message",
    "set_log_level",
    "version",
]


def _begin() -> None:
    _set_main_thread(_threading.main_thread().native_id or 0)
    _forget_all()
    _begin_log()


def _in_a_child() -> None:
    # What is left of a fork is the thread that made it.
    _set_main_thread(_threading.get_native_id())
    _forget_all()
    _begin_log()


_begin()
_atexit.register(_close_all)
_os.register_at_fork(after_in_child=_in_a_child)
