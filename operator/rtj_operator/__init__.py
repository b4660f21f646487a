"""The operator: keeps the training jobs of a cluster alive. It decides in `decide`, from values alone; everything else
carries values in or out.
"""
