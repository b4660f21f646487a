"""How a checkpoint is planned, staged, written, committed, proven and read again.

What it holds is the business of `state`, where it lies the business of `store`.
"""
