"""The environment of one command, and its steps with their stored results.

job          what was asked for             run          project, network, rows, device, store: open and checked
project      the spec and its files         store        the only place that decides between reuse and make
rows/        Jacobian rows of a split       hyperparameters, tuning     prior precision and noise variance
problem      Ω and its scores               selections → posteriors and their predictions
references/  methods without a sub-network  input_files, output_files   that the command line or the spec names
"""
