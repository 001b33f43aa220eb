"""Serving histories with faults in them: drawn from a seed, played on a tier, held against golden.

* `history`: what an engine decided, turn by turn; frozen, and JSON;
* `engine`: what follows from it: what the host knew and what the device had, frame by frame;
* `faults`: what can be planted, and whether it must leave outputs right or be noticed; `places`:
  where;
* `serving`: histories drawn from a seed;
* `profiles`: what a run draws, by name;
* `judge`: rows of many frames, held against golden at once;
* `player`: a history on a subject and a tier, every live row held against golden; `stage`: what it
  has on the device;
* `failure`: a finding as data; `telling`: its text;
* `shrink`: the smallest history of a finding; `simpler`: what it tries;
* `plant`: a fault, put into a frame or around it;
* `reach`: which values and pairs of values were met;
* `lane`: many histories, over the suite's own pytest processes; `findings`: what is written of one;
* `tally`: what runs saw, added up from their records; `machine`: Hypothesis decides, and shrinks;
* `mutants`: faults that take several steps to show, and the proof that drawn histories show them;
* `cli`: the commands.
"""
