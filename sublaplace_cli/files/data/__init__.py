"""The data section of the spec → splits of checked rows.

`datasets` reads the files of the splits, `sources` has the records between a reader and a split and chooses the rows,
`transforms` prepares inputs and targets chunk by chunk, `labels` numbers classes. The readers are `tables` with
`csv_rows` (csv), `columnar` (parquet, Arrow), `arrays` (npz, npy, safetensors) and `images` (image folders).
"""
