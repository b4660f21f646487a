"""``make demo``: a real training job on a real cluster loses a node and then a GPU, and ends bitwise equal to a run that lost nothing."""
