"""Several processes share the rows. Rank 0 is the leader: it runs the command and prints, and the followers run its
collective calls on their own rows. A heartbeat notices a lost or failed rank: then all exit with one message.
"""
