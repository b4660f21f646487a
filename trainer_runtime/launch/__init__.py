"""`rtj-run`: what runs in the pod around torchrun. It starts the ranks, watches them, tells the operator, and has the last word.

It imports no torch: it must be up at once, and alive when a rank's libraries are what is broken. It decides nothing about the job: who
restarts what and where is the operator's.
"""
