"""Does a resume of this script give the training that an uninterrupted run gives? Tried out, not argued.

From one checkpoint of the run the script is launched three times, into a store of its own: once straight through a few steps; once to the
first of them; and once more from there to the end. Equal losses, batches, random numbers and final bytes mean that nothing the steps
depend on is missing from the checkpoint. What the run itself computed after that checkpoint is compared too, where it was recorded.
Nothing is written to the run.
"""
