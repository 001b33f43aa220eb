"""History mutants: faults that no single step shows, and the proof that drawn histories do.

* `*.toml`: the mutants, in the form of `conformance.mutants`; `requirement` is the nearest one,
  whose cases of several steps may notice it;
* `counting`: a subject that notes how often each of its instances is used;
* `single`: the conformance cases that use each instance for one step;
* `copies`, `together`: a copy of the sources with a mutant in it, or with several at once;
* `lane`: histories of one starting seed, played in a copy of the sources until one is a finding;
* `hunt`: lanes of mutants, each in a copy of its own;
* `table`: what the hunts measured, as rows that a test holds against the mutants of today;
* `cli`: the command.
"""
