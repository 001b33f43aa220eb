"""The bundle: what a GPU host without network needs to run the suite on one FlashInfer version.

`build` makes the archive where there is a network and nvcc (no GPU needed); `unpack` checks and
lays it out on the GPU host with the standard library alone.
"""
