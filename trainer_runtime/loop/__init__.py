"""What `run` is made of: saving, resuming, ending, reporting and tidying, each beside the loop and none of it the loop itself."""
