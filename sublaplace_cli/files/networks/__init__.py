"""The model of the spec → a network with its weights.

`loading` puts the parts together. `checkpoints` reads a state dict (`containers` identifies files by their bytes,
`pickles` inspects a pickle without running it) and `weights` fits it to the network. `imports` calls the user's code if
allowed. `exported` reads a torch.export file: `exported_graph` checks its graph, `aten_operators` lists the operators
that it may use, and `aten_graph` runs it.
"""
