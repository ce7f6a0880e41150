"""The files of a run folder: safetensors with metadata and checksums, written atomically.

`layout` defines the bytes of an artifact, `schemas` what it must hold, `artifact` writes and reads one, `row_writer`
streams rows into one and can resume, `run_folder` is the locked folder with its identity, `atomic` has durable writes,
digests and canonical JSON.
"""
