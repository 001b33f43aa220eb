"""The twin: what lies below a sparse-MLA backend (FlashInfer's planner and kernel), on a CPU.

`surface` is the door: a native module to inject. Behind it `planner` writes the schedule, `kernel`
executes it (`workspace` decodes it, `memory` reads the cache, `merge` joins splits, `semantics`
says what differs by version) and `access` logs every read. `clock` is a device beside the host, on
which all of it may run late, and `pinned` the host memory that its copies read late. `wrapper` is
FlashInfer's Python wrapper of a version, for code that calls it, and `eager` a device for code that
launches by itself. `compiled` is FlashInfer's own planner, the reference for `planner` over the
inputs that `drawn` draws.

It is derived from FlashInfer's sources alone and imports nothing of the backends it serves. Left
out: causal masks, page sizes above 1, durations, and the last bit of float32 sums.
"""
