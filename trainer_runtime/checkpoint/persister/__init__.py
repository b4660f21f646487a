"""The process beside the ranks that writes, commits and verifies what they staged.

One for each worker, started by rtj-run, or by local rank 0 where there is none. It is given the ranks' memory as file descriptors, so what
was staged and sealed outlives them. It loads no torch, and it ends by itself when its ranks are gone and nothing is left to do.
"""
