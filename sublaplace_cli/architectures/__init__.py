"""Built-in networks, one file each, named in `catalog.ARCHITECTURES`; `binary_logodds` turns logits into log-odds."""
