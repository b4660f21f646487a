"""The words that allow a difference at a strict resume: the closed list that `attach(allow=…)` and `spec.checkpoint.allow` both take.

It is one value for both halves, so that the API refuses what the runtime would refuse later. What is compared is not decided here:
`trainer_runtime.state.strict` gives every difference its word.
"""

from __future__ import annotations

from enum import Enum
from typing import Final


class Allow(str, Enum):
    """One kind of difference, and what the resume does when it is allowed."""

    WORLD_SIZE = "worldSize"
    """Parameters, optimizer and the data cursor go on; ranks that are new get random numbers of their own."""
    STRUCTURE = "structure"
    """Parameters and buffers that both have are loaded, new ones stay as the script built them."""
    OPTIMIZER = "optimizer"
    """Its state is not loaded."""
    HYPER_PARAMETERS = "hyperparameters"
    """The script's values win over the saved ones."""
    SCHEDULER = "scheduler"
    """Its state is not loaded."""
    OBJECTS = "objects"
    """What both have is loaded."""
    RNG = "rng"
    """No random number generator is restored."""
    DATA = "data"
    """The position is taken up if the source is of the same kind, else training begins the data anew."""
    CONFIG = "config"
    """The script's configuration counts from here on; nothing of it is loaded either way."""
    TOKENIZER = "tokenizer"
    """The script's tokenizer counts from here on; nothing of it is loaded either way."""
    DETERMINISM = "determinism"
    """Training goes on under the flags the process has; bitwise equality ends here."""


ALLOW_WORDS: Final = tuple(word.value for word in Allow)
"""The words as people write them."""
