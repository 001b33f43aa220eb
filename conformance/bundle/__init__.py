"""The bundle: one file that runs the suite on one FlashInfer, on a GPU host without network.

`build` makes it where there is a network and nvcc (no GPU needed). `first` is what Python runs of
it, `start` lays it out in the cache and goes on as the command asked for, with the standard
library alone.
"""
