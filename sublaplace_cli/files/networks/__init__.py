"""The model of the spec → a network with its weights.

`loading` builds the network and fits the weights to it. `checkpoints` reads a state dict (`containers` identifies files
by their bytes, `pickles` inspects a pickle without running it). `imports` calls the user's code if allowed. `exported`
reads a torch.export file: `exported_graph` checks its graph, `aten_operators` lists the operators that it may use, and
`aten_graph` runs it.
"""
