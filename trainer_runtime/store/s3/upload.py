"""Data files to objects: small ones in one request, large ones in parts, all straight from the memory that they were staged in.

An upload that fails is aborted, so nothing of it stays; the parts of a process that was killed are aborted when its save is removed, or by
the bucket's lifecycle rule.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from trainer_runtime.errors import RuntimeProblem, StoreUnavailable
from trainer_runtime.store.base import AlreadyInStore, NotInStore
from trainer_runtime.store.s3.api import Api, Outcome
from trainer_runtime.store.s3.capabilities import Capabilities, abort, begin_request
from trainer_runtime.store.s3.crc32 import combine, to_base64
from trainer_runtime.store.s3.stream import Stream, Window

PART_BYTES: Final = 32 * 1024 * 1024
"""Bytes of a part: what a retry costs. S3 allows 5 MiB to 5 GiB, and 10,000 parts."""
SINGLE_BYTES: Final = 64 * 1024 * 1024
"""A file up to this size is one request instead of three and more."""
PARTS_AT_ONCE: Final = 4
_COMPARE_BYTES: Final = 8 * 1024 * 1024


@dataclass(frozen=True)
class _Part:
    number: int
    etag: str
    crc: int
    size: int

    def as_request(self, with_checksums: bool) -> dict[str, Any]:
        checksum = {"ChecksumCRC32": to_base64(self.crc)} if with_checksums else {}
        return {"PartNumber": self.number, "ETag": self.etag, **checksum}


class Uploader:
    """Writes new objects of one bucket. Thread-safe."""

    def __init__(self, api: Api, capabilities: Capabilities) -> None:
        self._api = api
        self._can = capabilities

    def put(self, key: str, data: memoryview, metadata: dict[str, str] | None = None) -> tuple[Outcome, Exception | None]:
        """Send an object in one request. Raises StoreUnavailable when it was surely not written."""
        request: dict[str, Any] = {"Bucket": self._api.bucket, "Key": key, "IfNoneMatch": "*", "Metadata": metadata or {}}
        if self._can.checks_parts:
            request["ChecksumCRC32"] = to_base64(zlib.crc32(data))
        return self._api.send_new("write", key, lambda: self._api.client.put_object(**request, Body=Window(data)))

    def write(self, key: str, data: memoryview) -> None:
        """Write a data file. Raises AlreadyInStore when other bytes are there."""
        if len(data) <= SINGLE_BYTES:
            settle(self._api, key, [data], self.put(key, data))
            return
        self._write_parts(key, [data[at : at + PART_BYTES] for at in range(0, len(data), PART_BYTES)])

    def write_blocks(self, key: str, blocks: Iterable[memoryview], size: int) -> None:
        """Write a data file whose bytes come in blocks. Raises AlreadyInStore, and StoreUnavailable when they are not ``size`` bytes."""
        parts = _parts_of(blocks, size, f"s3://{self._api.bucket}/{key}")
        if size > SINGLE_BYTES:
            self._require_absent(key)
            self._finish(key, *self._send_in_turn(key, parts))
            return
        whole = memoryview(b"".join(parts))
        settle(self._api, key, [whole], self.put(key, whole))

    def _require_absent(self, key: str) -> None:
        """Not every server obeys a condition at the end of a multipart upload, and no two processes write one data file."""
        try:
            self._api.look(key)
        except NotInStore:
            return
        raise AlreadyInStore(f"s3://{self._api.bucket}/{key}: already there")

    def _write_parts(self, key: str, pieces: list[memoryview]) -> None:
        try:
            self._require_absent(key)
        except AlreadyInStore:
            if not holds(self._api, key, pieces):
                raise
            return
        upload = self._begin(key)
        pool = ThreadPoolExecutor(PARTS_AT_ONCE, thread_name_prefix="rtj-s3")
        try:
            jobs = [pool.submit(self._send, key, upload, number, piece) for number, piece in enumerate(pieces, 1)]
            parts = [job.result() for job in jobs]
        except BaseException as error:
            pool.shutdown(wait=True, cancel_futures=True)
            self._give_up(key, upload, error)
            raise
        pool.shutdown()
        settle(self._api, key, pieces, self._complete(key, upload, parts))

    def _send_in_turn(self, key: str, pieces: Iterable[memoryview]) -> tuple[str, list[_Part]]:
        upload = self._begin(key)
        try:
            return upload, [self._send(key, upload, number, piece) for number, piece in enumerate(pieces, 1)]
        except BaseException as error:
            self._give_up(key, upload, error)
            raise

    def _finish(self, key: str, upload: str, parts: list[_Part]) -> None:
        """End an upload whose bytes are gone from memory: an answer that is lost is decided by size, and proven when the copy is read."""
        outcome, error = self._complete(key, upload, parts)
        if outcome is Outcome.DONE:
            return
        try:
            found = self._api.look(key).size
        except NotInStore:
            found = -1
        if found != sum(part.size for part in parts):
            raise self._api.unavailable("write", key, error) if error else AlreadyInStore(f"s3://{self._api.bucket}/{key}: already there")

    def _begin(self, key: str) -> str:
        request = begin_request(self._api.bucket, key, self._can.checks_parts)
        return str(self._api.call("begin an upload of", key, lambda: self._api.client.create_multipart_upload(**request))["UploadId"])

    def _send(self, key: str, upload: str, number: int, piece: memoryview) -> _Part:
        crc = zlib.crc32(piece) if self._can.checks_parts else 0
        request: dict[str, Any] = {"Bucket": self._api.bucket, "Key": key, "UploadId": upload, "PartNumber": number}
        if self._can.checks_parts:
            request["ChecksumCRC32"] = to_base64(crc)
        answer = self._api.call("upload a part of", key, lambda: self._api.client.upload_part(**request, Body=Window(piece)))
        return _Part(number, answer["ETag"], crc, len(piece))

    def _complete(self, key: str, upload: str, parts: list[_Part]) -> tuple[Outcome, Exception | None]:
        listed = [part.as_request(self._can.checks_parts) for part in parts]
        request: dict[str, Any] = {"Bucket": self._api.bucket, "Key": key, "UploadId": upload, "IfNoneMatch": "*"}
        if self._can.checks_whole:
            request["ChecksumCRC32"] = to_base64(combine((part.crc, part.size) for part in parts))
            request["ChecksumType"] = "FULL_OBJECT"
        try:
            ended = self._api.send_new(
                "complete", key, lambda: self._api.client.complete_multipart_upload(**request, MultipartUpload={"Parts": listed})
            )
        except StoreUnavailable as error:
            self._give_up(key, upload, error)
            raise
        if ended[0] is not Outcome.DONE:
            abort(self._api, key, upload)
        return ended

    def _give_up(self, key: str, upload: str, error: BaseException) -> None:
        try:
            abort(self._api, key, upload)
        except RuntimeProblem as problem:
            error.add_note(f"the parts that were sent stay: {problem}")


def settle(api: Api, key: str, pieces: list[memoryview], ended: tuple[Outcome, Exception | None]) -> None:
    """Decide by reading where the answer to a write was "exists" or none: our bytes are our success.

    Raises AlreadyInStore when other bytes are there, StoreUnavailable when nothing is.
    """
    outcome, error = ended
    if outcome is Outcome.DONE:
        return
    try:
        if holds(api, key, pieces):
            return
    except NotInStore as absent:
        if error is not None:
            raise api.unavailable("write", key, error) from error
        raise StoreUnavailable(f"cannot write s3://{api.bucket}/{key}: the server says that it exists, and does not have it") from absent
    raise AlreadyInStore(f"s3://{api.bucket}/{key}: already there")


def holds(api: Api, key: str, pieces: list[memoryview]) -> bool:
    """Say whether an object's bytes are those of ``pieces``, one after the other. Raises NotInStore."""
    stream = Stream(api, key)
    try:
        for piece in pieces:
            for at in range(0, len(piece), _COMPARE_BYTES):
                wanted = piece[at : at + _COMPARE_BYTES]
                found = memoryview(bytearray(len(wanted)))
                if stream.read_into(found) != len(wanted) or found != wanted:
                    return False
        return stream.read_into(memoryview(bytearray(1))) == 0
    finally:
        stream.close()


def _parts_of(blocks: Iterable[memoryview], size: int, where: str) -> Iterator[memoryview]:
    """Yield the bytes of ``blocks`` in parts of PART_BYTES; a block may be used again when the next one is asked for, so they are copied.

    Raises StoreUnavailable when they are not ``size`` bytes.
    """
    part = bytearray()
    came = 0
    for block in blocks:
        came += len(block)
        while len(block) > 0:
            taken = PART_BYTES - len(part)
            part += block[:taken]
            block = block[taken:]
            if len(part) == PART_BYTES:
                yield memoryview(part)
                part = bytearray()
    if came != size:
        raise StoreUnavailable(f"cannot write {where}: {came} of {size} bytes came")
    if part:
        yield memoryview(part)
