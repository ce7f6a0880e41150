"""Jacobian rows of the splits.

passes         data rows → tensors that the network takes → outputs and blocks, one pass at a time
row_storage    hold, store or recompute the rows of a split        row_shards     the same with several workers
block_reader   blocks from an artifact, prefetched for a device
"""
