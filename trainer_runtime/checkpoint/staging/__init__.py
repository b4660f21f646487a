"""What the training thread does of a save: work out who writes what, take the memory, and copy. Nothing here writes to a store."""
