"""A throw-away Kubernetes with real kubelets whose machines can be made to fail on command.

`python -m e2e.cluster up` for people, `driver.choose_driver()` for scenarios. Only the standard library is imported here, so that a node's
first process starts fast.
"""
