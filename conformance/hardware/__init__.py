"""Hardware records: what a GPU planned, packed and computed, to be replayed without one.

* `scenes`: a fixed list of small batches; `inputs`: what they draw, never stored;
* `tap`: between a subject and FlashInfer's native module; `recording`: a scene, run and read back;
* `files`: a folder of them with its manifest, whole or refused;
* `schedule`: the judge of all that is integers; `numbers`: of all that is not; `replay`: both.
"""
