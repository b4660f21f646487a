"""What a checkpoint holds: gathered from the live objects, compared before a resume, and put back.

It reads and writes no file: `trainer_runtime.checkpoint` does. No pickle passes through here.
"""
