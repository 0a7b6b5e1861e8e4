"""`python -m penstock`: what is installed, and what this host can do."""

import ctypes
import os
import platform
import sys

import penstock


def transports() -> list[tuple[str, str]]:
    """Each transport, and whether this host has what it needs."""
    try:
        penstock.Engine().close()
    except penstock.Error as error:
        return [("engine", f"does not start: {error}")]
    return [("local", "yes"), ("shm", "yes"), ("tcp", "yes"), ("datagram", "yes"), ("verbs", _verbs())]


def _verbs() -> str:
    try:
        devices = sorted(os.listdir("/sys/class/infiniband"))
    except FileNotFoundError:
        devices = []
    if not devices:
        return "no: there is no RDMA device"
    for library in ("libibverbs.so.1", "librdmacm.so.1"):
        try:
            ctypes.CDLL(library)
        except OSError as error:
            return f"no: {error}"
    return f"yes: {', '.join(devices)}"


def main() -> None:
    lines = [
        ("version", penstock.version()),
        ("ABI", str(penstock.abi())),
        ("library", str(penstock.library_path())),
        ("Python", f"{platform.python_version()} at {sys.executable}"),
        ("host", f"Linux {platform.release()}, {platform.machine()}, {os.cpu_count()} processors"),
    ]
    for name, words in lines + transports():
        print(f"{name:<8} {words}")


if __name__ == "__main__":
    main()
