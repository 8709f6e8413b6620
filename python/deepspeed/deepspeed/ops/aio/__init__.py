"""The name of the operator behind NVMe offload, which is part of Tessera's library."""


class AsyncIOBuilder:
    NAME = "async_io"

    def is_compatible(self, verbose=False):
        return True
