"""The benchmark: what planning and the kernels around FlashInfer's cost, beside its own wrapper.

It measures and judges no speed. What it does judge is that a plan's bytes are the native planner's
and that no memory grows. A rehearsal runs the same calls on the CPU and times none of them.
"""
