"""Canaries: slots whose touch is a fault, planted where a kernel must not read, and what happened.

A value canary (NaN) is blind where a kernel masks or converts what it loaded. Memory between
unmapped pages is not: any load from it ends the CUDA context, so each experiment has a process of
its own.
"""
