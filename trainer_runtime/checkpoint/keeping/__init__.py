"""Which checkpoints there are, where copies of them lie, and which of them go."""
