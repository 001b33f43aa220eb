"""What pytest runs of the fuzzer: one test, whose cases are seeds, on the suite's own processes."""
