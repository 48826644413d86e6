"""Where the arithmetic runs: one contract, several backends."""
