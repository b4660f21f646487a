"""The API that users write and read: models, conditions, reasons, keys, and the CRD that is generated from them.

Not here: what a status means for the next step (`decide`) or how an object becomes pods (`build`). Nothing here talks to a cluster.
"""
