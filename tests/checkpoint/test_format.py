"""The format, byte for byte. A change here is a change of docs/checkpoint-format.md and of the version in every document."""

from __future__ import annotations

import hashlib
import json
import struct

import torch
import xxhash
from blake3 import blake3

from tests.checkpoint.world import RUN, attempt_on
from trainer_runtime.contract.codec import dumps, loads
from trainer_runtime.contract.manifest import Fence, IndexEntry, JobIdentity, Manifest, Parent, VerifiedMark, parse_manifest
from trainer_runtime.state.leaves import Kind, Leaf, Snapshot
from trainer_runtime.store.posix import PosixStore

SNAPSHOT = Snapshot(
    (
        Leaf("model/bias", torch.tensor([1.0, -2.0], dtype=torch.bfloat16), Kind.MODEL, True, requires_grad=True),
        Leaf("model/weight", torch.tensor([[1.0, 2.0], [3.0, 4.0]]), Kind.MODEL, True, requires_grad=True),
        Leaf("model/tied", torch.tensor([[1.0, 2.0], [3.0, 4.0]]), Kind.MODEL, True, requires_grad=True, alias_of="model/weight"),
        Leaf("optim/weight/step", torch.tensor(3), Kind.OPTIM, True),
        Leaf("rank00000/rng", torch.tensor([7], dtype=torch.uint8), Kind.EXTRA, False),
    ),
    {"scheduler": {"last": 3, 1: (0.5, None)}, "rank00000/data": {"cursor": 24}},
)

MODEL_HEADER = (
    b'{"__metadata__":{"format":"pt"},'
    b'"model/weight":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},'
    b'"model/bias":{"dtype":"BF16","shape":[2],"data_offsets":[16,20]}}'
)
MODEL_DATA = struct.pack("<4f", 1.0, 2.0, 3.0, 4.0) + b"\x80\x3f\x00\xc0"
INDEX = (
    '{"files":['
    '{"blake3":"MODEL-B3","chunk_size":16777216,"path":"data/00000-model-0.safetensors","size":4116,"xxh3_128":["MODEL-XXH"]},'
    '{"blake3":"OPTIM-B3","chunk_size":16777216,"path":"data/00000-optim-0.safetensors","size":4104,"xxh3_128":["OPTIM-XXH"]},'
    '{"blake3":"EXTRA-B3","chunk_size":16777216,"path":"data/00000-extra-0.safetensors","size":4097,"xxh3_128":["EXTRA-XXH"]}],'
    '"objects":['
    '{"name":"rank00000/data","value":{"dict":[["cursor",24]]}},'
    '{"name":"scheduler","value":{"dict":[["last",3],[1,{"tuple":[{"float":"0x1.0000000000000p-1"},null]}]]}}],'
    '"rank":0,"tensors":['
    '{"alias_of":null,"chunks":[{"byte_offset":4112,"file":"data/00000-model-0.safetensors","fingerprint":2192198272,"nbytes":4,"offset":[0],"size":[2]}],'
    '"dtype":"BF16","global_shape":[2],"name":"model/bias","requires_grad":true},'
    '{"alias_of":null,"chunks":[{"byte_offset":4096,"file":"data/00000-model-0.safetensors","fingerprint":884998144,"nbytes":16,"offset":[0,0],"size":[2,2]}],'
    '"dtype":"F32","global_shape":[2,2],"name":"model/weight","requires_grad":true},'
    '{"alias_of":null,"chunks":[{"byte_offset":4096,"file":"data/00000-optim-0.safetensors","fingerprint":606671825,"nbytes":8,"offset":[],"size":[]}],'
    '"dtype":"I64","global_shape":[],"name":"optim/weight/step","requires_grad":false},'
    '{"alias_of":null,"chunks":[{"byte_offset":4096,"file":"data/00000-extra-0.safetensors","fingerprint":510054893,"nbytes":1,"offset":[0],"size":[1]}],'
    '"dtype":"U8","global_shape":[1],"name":"rank00000/rng","requires_grad":false},'
    '{"alias_of":"model/weight","chunks":[],"dtype":"F32","global_shape":[2,2],"name":"model/tied","requires_grad":true}],'
    '"version":"1.0"}'
)
MANIFEST = (
    '{"allowances":[],"attempt":2,"consumed_samples":96,"created_at":1.5,"epoch":1,"fingerprint":"","followed":null,'
    '"indexes":[{"rank":0,"sha256":"ab","size":9}],"job":{"name":"train","namespace":"team","uid":"u"},"metrics":{},"not_saved":[],'
    '"parents":[{"attempt":1,"manifest_sha256":"cd","relation":"resume","step":10}],"run":"run","self_sha256":"SELF",'
    '"snapshots":{},"software":{"torch":"2.13.0"},"step":12,"strict":{"lr":0.1},"tags":["stage-end"],"total_bytes":4116,"version":"1.0","world_size":1}'
)


def test_data_files_and_index_are_exactly_these_bytes(store: PosixStore) -> None:
    with attempt_on(store) as attempt:
        attempt.saved(12, [SNAPSHOT])
    directory = f"{RUN}/steps/0000000012-00000001"
    files = {kind: store.read(f"{directory}/data/00000-{kind}-0.safetensors") for kind in ("model", "optim", "extra")}

    assert files["model"] == struct.pack("<Q", 4088) + MODEL_HEADER.ljust(4088) + MODEL_DATA
    assert files["optim"][4096:] == struct.pack("<q", 3)
    assert files["extra"][4096:] == b"\x07"

    index = INDEX
    for kind, data in files.items():
        index = index.replace(f"{kind.upper()}-B3", blake3(data).hexdigest())
        index = index.replace(f"{kind.upper()}-XXH", xxhash.xxh3_128(data).hexdigest())
    assert store.read(f"{directory}/ranks/00000.json").decode() == index

    manifest = parse_manifest(store.read(f"{directory}/manifest.json"))
    assert manifest.indexes == (IndexEntry(0, hashlib.sha256(index.encode()).hexdigest(), len(index)),)
    assert manifest.total_bytes == sum(map(len, files.values()))
    assert manifest.to_bytes() == store.read(f"{directory}/manifest.json")
    assert store.list(directory) == ("data", "manifest.json", "ranks", "verified.json")


def test_the_manifest_is_exactly_these_bytes() -> None:
    manifest = Manifest(
        run="run",
        attempt=2,
        step=12,
        epoch=1,
        job=JobIdentity("team", "train", "u"),
        world_size=1,
        indexes=(IndexEntry(0, "ab", 9),),
        total_bytes=4116,
        parents=(Parent(10, 1, "cd", "resume"),),
        consumed_samples=96,
        strict={"lr": 0.1},
        software={"torch": "2.13.0"},
        tags=("stage-end",),
        created_at=1.5,
    )
    own = hashlib.sha256(MANIFEST.replace("SELF", "").encode()).hexdigest()
    assert manifest.to_bytes().decode() == MANIFEST.replace("SELF", own)


def test_a_field_of_a_newer_writer_is_ignored_and_still_covered_by_the_digest() -> None:
    document = json.loads(MANIFEST) | {"zeal": 1, "version": "1.9", "self_sha256": ""}
    own = hashlib.sha256(json.dumps(document, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    text = json.dumps(document | {"self_sha256": own}, sort_keys=True, separators=(",", ":"))
    assert parse_manifest(text.encode()).step == 12


def test_fence_and_verified_mark_are_exactly_these_bytes() -> None:
    fence = '{"attempt":3,"job_uid":"u","nonce":"n","pod_uid":"p","resume":null,"resume_run":null,"version":"1.0"}'
    assert dumps(Fence(3, "u", "p", "n", None)) == fence
    assert loads(Fence, fence) == Fence(3, "u", "p", "n", None)
    mark = '{"by":"worker-0","level":"verified","manifest_sha256":"ab","verified_at":2.5,"version":"1.0"}'
    assert dumps(VerifiedMark("ab", "verified", 2.5, "worker-0")) == mark
