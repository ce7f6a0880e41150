"""One file a command, and what they share: the library's high-level API.

settings   what a user may ask for          request    method and k as typed → what to do
session    spec, model, data, run folder    jacobians → select → fit → evaluate, each making what is missing
"""
