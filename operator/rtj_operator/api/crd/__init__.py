"""The CustomResourceDefinition, made from the models. `python -m rtj_operator.api.crd` writes it or checks what is written."""
