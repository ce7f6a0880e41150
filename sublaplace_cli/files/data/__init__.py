"""The data section of the spec → splits of checked rows.

`datasets` reads the files of the splits, `sources` has the records between a reader and a split and chooses the rows,
`transforms` prepares inputs and targets chunk by chunk. The readers are `tables` (csv), `parquet`, `arrays` (npz, npy,
safetensors) and `images` (image folders).
"""
