"""The local socket between the ranks of one worker and its rtj-run: progress and reasons go up, orders come down.

It is not a way between machines (that is the heartbeat) and not a way between ranks (that is the exchange).
"""
