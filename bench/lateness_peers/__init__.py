"""Delayed jobs of the peers, programs that run in the peers' own environment and import nothing of ours.

Each reads a plan {"database_url", "redis_url", "due_s", "give_up_s"} from its standard input, has a job run at every
due moment, and prints how late each began, in ms: null for one that never did.
"""
