"""The judge of HIST-1, which a conformance run takes from here by its place."""
