"""The conformance suite: proves a sparse-MLA decode backend right, with or without a GPU."""
