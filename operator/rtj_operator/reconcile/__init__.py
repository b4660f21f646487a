"""One pass for one job: observe, decide, write status once, act. What to do is decided in `rtj_operator.decide`, never here."""
