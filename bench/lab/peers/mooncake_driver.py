"""One side of a pair of Mooncake transfer engines over TCP, driven through its own Python package."""

import sys
from importlib.metadata import version

from common import Side, serve

from mooncake.engine import TransferEngine


class Mooncake(Side):
    def __init__(self):
        super().__init__()
        self.engine = TransferEngine()
        # Port 0: it takes a free one and says which. P2PHANDSHAKE: no metadata service.
        answer = self.engine.initialize("127.0.0.1:0", "P2PHANDSHAKE", "tcp", "")
        if answer != 0:
            raise RuntimeError(f"initialize answered {answer}")
        self.session = None
        self.peer_base = None

    def do_version(self):
        return {"version": version("mooncake-transfer-engine-non-cuda")}

    def register(self, memory):
        answer = self.engine.register_memory(memory.base, memory.length)
        if answer != 0:
            raise RuntimeError(f"register_memory answered {answer}")
        return {"port": self.engine.get_rpc_port(), "base": memory.base}

    def meet(self, address):
        self.session = f"127.0.0.1:{address['port']}"
        self.peer_base = address["base"]

    def prepare(self, local, remote):
        lengths = [self.layout.block_bytes] * len(local)
        return [self.memory.base + int(at) for at in local], [self.peer_base + int(at) for at in remote], lengths

    def move(self, prepared):
        local, remote, lengths = prepared
        answer = self.engine.batch_transfer_sync_write(self.session, local, remote, lengths)
        if answer != 0:
            raise RuntimeError(f"batch_transfer_sync_write answered {answer}")


if __name__ == "__main__":
    serve(Mooncake().functions())
