"""Built-in networks, one file each, named in `catalog.ARCHITECTURES`.

`mlp` and `cifar_resnet` are architectures, `arguments` checks their `args:`, and `binary_logodds` turns the logits of a
classifier into one log-odds.
"""
