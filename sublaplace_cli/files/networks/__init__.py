"""The model of the spec → a network with its weights.

`loading` builds the network and fits the weights to it. `checkpoints` reads a state dict, `containers` inspects files
that are not trusted, and `imports` calls the user's code if allowed. `exported` reads a torch.export file:
`aten_operators` lists the operators that it may use, `argument_checks` what their kernels do not check themselves,
`aten_graph` runs its `aten_steps`, and `dry_run` does so on tensors without values first.
"""
