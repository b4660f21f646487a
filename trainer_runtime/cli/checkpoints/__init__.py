"""``rtj-checkpoints``: what lies in a store, for people. It works without torch and without a cluster."""
