"""What identifies a run (network, rows, options that change a number), and that all ranks agree on it."""
