"""The sanitizer lane: a small drawn set of hopper cases under NVIDIA's compute-sanitizer.

memcheck sees accesses outside of allocations, initcheck reads of device memory nobody wrote. The
caching allocator is off, since it would hide both behind its pools. Each tool must first find a
fault planted on purpose; what it reports of torch alone is the baseline, and not the subject's.
"""
