"""Penstock: moves blocks of memory between processes and hosts.

    import penstock

    with penstock.Engine("decode-0") as engine:
        card = engine.descriptor()      # send it to the other side

What fails raises `penstock.Error` or a subclass of it; `python -m penstock` says what is installed.
"""

from ._penstock import (
    AccessDenied,
    BadConfig,
    Cancelled,
    Closed,
    Deadline,
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
    OutOfBounds,
    OutOfMemory,
    PeerClosed,
    PeerLost,
    Refused,
    Revoked,
    TimedOut,
    Unreachable,
    Unsupported,
    WrongThread,
    abi,
    library_path,
    message,
    version,
)

__version__ = version()

__all__ = [
    "AccessDenied",
    "BadConfig",
    "Cancelled",
    "Closed",
    "Deadline",
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
    "OutOfBounds",
    "OutOfMemory",
    "PeerClosed",
    "PeerLost",
    "Refused",
    "Revoked",
    "TimedOut",
    "Unreachable",
    "Unsupported",
    "WrongThread",
    "abi",
    "library_path",
    "message",
    "version",
]
