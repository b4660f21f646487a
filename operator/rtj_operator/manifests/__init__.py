"""What the operator knows of committed and verified checkpoints. It never reads the checkpoints themselves: the runtime proves bytes."""
