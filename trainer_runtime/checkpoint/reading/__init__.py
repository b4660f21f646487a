"""From a checkpoint back to tensors: reading and proving what is needed, filling live tensors, comparing and exporting."""
