"""The only edge to storage: what a checkpoint needs of a file system or an object store, and nothing about checkpoints themselves."""
