"""Serving histories with faults in them: drawn from a seed, played on a tier, held against golden.

* `history`: what an engine decided, turn by turn; frozen, and JSON;
* `engine`: what follows from it: what the host knew and what the device had, frame by frame;
* `faults`: what can be planted, and whether it must leave outputs right or be noticed;
* `serving`: histories drawn from a seed;
* `player`: a history on a subject and a tier, every live row held against golden;
* `plant`: a fault, put into a frame or around it;
* `reach`: which values and pairs of values were met;
* `runner`: many histories, one seed after the other; `machine`: Hypothesis decides, and shrinks;
* `mutants`: faults that take several steps to show, and the proof that drawn histories show them;
* `cli`: the commands.
"""
