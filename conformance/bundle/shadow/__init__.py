"""Stand before the host's own wheels of prebuilt FlashInfer modules, which are of other versions.

FlashInfer looks for `flashinfer_jit_cache` and `flashinfer_cubin` by import: its releases differ in
whether a foreign one is an error, is ignored, or is taken. A bundle brings its modules along.
"""
