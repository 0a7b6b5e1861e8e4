"""Transfers and notifications in an event loop: by the engine's event fd, without threads and without polling.

An engine's event fd has one user. While a loop awaits anything of an engine it is that one: a second loop gets an error.
"""

from __future__ import annotations

import asyncio
import os
import threading
from typing import TYPE_CHECKING, Any

from ._penstock import Closed, Error

if TYPE_CHECKING:
    from ._penstock import Completed, Engine, Notification, Transfer

# Of each engine that something is awaited of, by the number of its handle.
_watches: dict[int, _Watch] = {}
_lock = threading.Lock()

# How often a look begins anew before others in the loop have their turn.
_TURNS = 3


class _Watch:
    """What is awaited of one engine, in one loop."""

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop) -> None:
        self.engine = engine
        self.loop = loop
        self.transfers: dict[asyncio.Future[Completed], Transfer] = {}
        self.listeners: list[asyncio.Future[None]] = []
        self.is_due = False
        # One of its own: the engine's is closed by whoever closes that, and its number soon means something else.
        self.fd = os.dup(engine.fileno())
        loop.add_reader(self.fd, self.look)

    def look_soon(self) -> None:
        """Once for all who begin or cease to wait in one turn of the loop."""
        if not self.is_due:
            self.is_due = True
            self.loop.call_soon(self.look)

    def look(self) -> None:
        """Takes what has happened, and sleeps on the fd again as long as anybody waits."""
        self.is_due = False
        try:
            for _ in range(_TURNS):
                if self.engine.inline:
                    self.engine.progress()
                self.take()
                if not (self.transfers or self.listeners):
                    return self.leave()
                if self.engine.arm():
                    return None
            self.look_soon()
        except Error as error:
            self.fail(error)

    def take(self) -> None:
        for future in [future for future in self.transfers if future.done()]:
            del self.transfers[future]
        waiting = list(self.transfers.items())
        for place, end in self.engine.poll_many([transfer for _, transfer in waiting]):
            future, _ = waiting[place]
            del self.transfers[future]
            if future.done():
                continue
            if isinstance(end, BaseException):
                future.set_exception(end)
            else:
                future.set_result(end)
        # They take the notifications themselves: one that is cancelled now would lose what it had been given.
        self.listeners = [future for future in self.listeners if not future.done()]
        if self.listeners and self.engine.wait_notification(timeout=0):
            for listener in self.listeners:
                if not listener.done():
                    listener.set_result(None)
            self.listeners.clear()

    def left(self, future: asyncio.Future[Any]) -> None:
        """Somebody does not wait any more: they were answered, cancelled, or their coroutine was closed."""
        if self.loop.is_closed():
            return
        if not future.done():
            future.cancel()
        self.look_soon()

    def leave(self) -> None:
        """Nobody waits any more, so that another loop may."""
        if _watches.get(self.engine._number) is self:
            del _watches[self.engine._number]
        if self.fd >= 0:
            if not self.loop.is_closed():
                self.loop.remove_reader(self.fd)
            os.close(self.fd)
            self.fd = -1

    def fail(self, error: Error) -> None:
        """The engine was closed, or belongs to another thread or process."""
        self.leave()
        waiting = list(self.transfers.items())
        self.transfers.clear()
        for future, transfer in waiting:
            if future.done():
                continue
            try:
                end = transfer.poll()
            except Error as words:
                future.set_exception(words)
                continue
            if end is not None:
                future.set_result(end)
            else:
                future.set_exception(error)
        for listener in self.listeners:
            if not listener.done():
                listener.set_exception(error)
        self.listeners.clear()


def _watch(engine: Engine) -> _Watch:
    """This loop's watch of an engine."""
    loop = asyncio.get_running_loop()
    with _lock:
        watch = _watches.get(engine._number)
        if watch is not None and watch.loop is not loop:
            if not watch.loop.is_closed():
                raise RuntimeError(
                    f"engine {engine.name!r} is awaited in another event loop; await it in one loop at a time"
                )
            watch.leave()
            watch = None
        if watch is None:
            watch = _watches[engine._number] = _Watch(engine, loop)
        return watch


async def ended(transfer: Transfer) -> Completed:
    """How a transfer ended. Who is cancelled meanwhile cancels the transfer, and finds what that answered in `transfer.cancelled`."""
    end = transfer.poll()
    if end is not None:
        return end
    watch = _watch(transfer.engine)
    future: asyncio.Future[Completed] = watch.loop.create_future()
    watch.transfers[future] = transfer
    watch.look_soon()
    try:
        return await future
    except asyncio.CancelledError:
        try:
            transfer.cancel(timeout=0)
        except Error:
            pass  # It says so to whoever asks the transfer.
        raise
    finally:
        watch.left(future)


async def next_notification(engine: Engine) -> Notification:
    """The next notification of an engine, when there is one."""
    while True:
        try:
            for note in engine.notifications():
                return note
            watch = _watch(engine)
            future: asyncio.Future[None] = watch.loop.create_future()
            watch.listeners.append(future)
            watch.look_soon()
            try:
                await future
            finally:
                watch.left(future)
        except Closed:
            raise StopAsyncIteration from None


def closed(number: int) -> None:
    """An engine was closed: whoever awaits anything of it hears so."""
    watch = _watches.get(number)
    if watch is not None:
        try:
            watch.loop.call_soon_threadsafe(watch.look_soon)
        except RuntimeError:
            watch.leave()  # The loop was closed.
