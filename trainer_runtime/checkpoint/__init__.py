"""How a checkpoint is planned, staged, written, committed, proven and read again.

`staging` is what stops training; `persister` is the process that does the rest of a save; `reading` goes back to tensors; `keeping` knows
which checkpoints there are, where copies lie and which go. `engine` and `opening` are how a training loop begins with them. What lies
beside these is the format and how a part is committed and proven, which all of them use.

What a checkpoint holds is the business of `state`, where it lies the business of `store`.
"""
