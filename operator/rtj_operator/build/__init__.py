"""Spec and status in, Kubernetes objects out, as plain dicts. Pure: no clock, no cluster, and no input is changed.

Not here: when an object is created (`decide`) or how (`reconcile.act`).
"""
