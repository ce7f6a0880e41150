"""Sub-networks on real rows: `fitting` their posteriors, their `predictions`, and the `calibration` of any method."""
