"""The beat sender: one process per worker that tells the operator what the worker does, and brings back the answer.

It is a process of its own because a trainer that holds the interpreter's lock for a minute is not a dead trainer. It judges nothing: it
repeats the newest state its parent gave it. It needs no torch and imports in a fraction of a second.
"""
