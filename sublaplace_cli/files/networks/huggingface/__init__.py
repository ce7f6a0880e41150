"""Networks of Hugging Face transformers from a local folder: nothing is downloaded, and no code of the folder runs.

`folder` reads the folder's own files, `building` makes the network, `logits` its forward, `adapters` adds LoRA.
"""
