"""Training loops of other libraries under this runtime. Each adapter states what it promises; nothing here is loaded unless imported."""
