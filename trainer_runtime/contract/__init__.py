"""What the operator and the trainer runtime agree on: names, values and their JSON. Nothing else may be shared between the two halves.

Standard library only, so that the operator image needs no torch and a pod can read its assignment before any import of weight.
It is not a place for behaviour: a function here only converts, names or compares.
"""
