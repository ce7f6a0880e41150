"""Jacobian rows of the splits.

input_reader   data rows → tensors that the network takes          passes         one pass over some rows
row_storage    hold, store or recompute the rows of a split        row_shards     the same with several workers
block_reader   blocks from an artifact, prefetched for a device
"""
