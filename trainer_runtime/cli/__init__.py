"""Commands for people. They look at checkpoints and at scripts; they train nothing and decide nothing for a job."""
