"""Several processes that share the rows: torchrun, or another launcher, starts the ranks and sets their environment.

Rank 0 is the leader: it runs the command and prints, and the followers run its collective calls on their own rows. A
heartbeat between the ranks notices a rank that was lost or has failed, so that all of them end with one message.
"""
