"""``rtj-checkpoints export``: the model as a directory that other tools load."""

from __future__ import annotations

from pathlib import Path

from trainer_runtime.checkpoint.documents import read_documents
from trainer_runtime.checkpoint.elements import ITEM_BYTES
from trainer_runtime.checkpoint.reading.export import MODEL, export_model
from trainer_runtime.cli.checkpoints import wording
from trainer_runtime.cli.checkpoints.choice import Chosen, Place, reading, short_name


def run(place: Place, word: str, directory: Path) -> int:
    """Write the directory and say what is in it."""
    chosen = place.choose(word)
    with reading(chosen):
        _export(chosen, directory)
    return 0


def _export(chosen: Chosen, directory: Path) -> None:
    documents = read_documents(chosen.store, chosen.found.reference)
    total = sum(
        chunk.nbytes
        for name, entry in documents.tensors.items()
        if name.startswith(MODEL) and entry.dtype in ITEM_BYTES
        for chunk in entry.chunks
    )
    progress = wording.Progress(f"step {short_name(chosen.found)}", total)
    try:
        exported = export_model(chosen.store, documents, directory, on_bytes=progress.add)
    finally:
        progress.end()
    print(f"step {short_name(chosen.found)}: {exported.tensors} tensors, {wording.size(exported.total_bytes)}, in {directory}")
    for name, kept in sorted(exported.aliases.items()):
        print(f"  {name} is {kept} by another name and was left out")
    if not documents.manifest.snapshots:
        print("  the checkpoint holds no config and no tokenizer: put config.json beside the weights before from_pretrained reads them")
