"""An S3 server in this process that obeys the rules until it is told not to: it refuses, forgets, lies and damages on demand.

It keeps objects in memory, checks CRC-32 checksums of parts and wholes (which neither gofakes3 nor moto does), and lists two keys a page.
"""

from __future__ import annotations

import base64
import threading
import time
import urllib.parse
import uuid
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from xml.etree import ElementTree
from xml.sax.saxutils import escape

PAGE_KEYS = 2
LOSE, CLOSE, CUT = "lose", "close", "cut"
"""Do the work and close the connection without an answer; close it before the work; close it half way through the answer's body."""


@dataclass
class Trouble:
    """What goes wrong with the next so many requests of one operation."""

    operation: str
    """Its name in the API: PutObject, GetObject, UploadPart, …"""
    act: str | int
    """LOSE, CLOSE, CUT, or the status of the answer."""
    times: int = 1
    code: str = "SlowDown"
    key_has: str = ""
    """Only for keys that contain this."""


@dataclass
class Object:
    data: bytes
    metadata: dict[str, str]
    written_at: float = field(default_factory=time.time)

    @property
    def etag(self) -> str:
        return f'"{zlib.crc32(self.data):08x}"'


@dataclass
class Upload:
    key: str
    parts: dict[int, bytes] = field(default_factory=dict)


@dataclass
class Hostile:
    """The server's memory and its moods. Tests read and change both."""

    endpoint: str = ""
    objects: dict[str, Object] = field(default_factory=dict)
    uploads: dict[str, Upload] = field(default_factory=dict)
    troubles: list[Trouble] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    """The operations that came in."""
    obeys_conditions: bool = True
    obeys_ranges: bool = True
    checks_checksums: bool = True
    drops_part: int | None = None
    """This part of every multipart object is silently missing from it."""
    damages: str | None = None
    """Flip a bit of what is written under keys that contain this, after it was checked."""
    is_open: Callable[[], bool] = lambda: False
    """While it says so, there is no trouble."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take_trouble(self, operation: str, key: str) -> Trouble | None:
        for trouble in () if self.is_open() else self.troubles:
            if trouble.operation == operation and trouble.times > 0 and trouble.key_has in key:
                trouble.times -= 1
                return trouble
        return None

    def store(self, key: str, data: bytes, metadata: dict[str, str]) -> Object:
        if self.damages is not None and self.damages in key and data:
            data = bytes([data[0] ^ 1]) + data[1:]
        self.objects[key] = Object(data, metadata)
        return self.objects[key]


@contextmanager
def hostile_s3() -> Iterator[Hostile]:
    """Yield a running server with one bucket of any name."""
    state = Hostile()
    handler = type("Handler", (_Handler,), {"state": state})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    state.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Refused(Exception):
    def __init__(self, status: int, code: str) -> None:
        self.status, self.code = status, code


@dataclass
class _Answer:
    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one packet, or the second waits for the acknowledgement of the first
    state: Hostile

    def log_message(self, *_arguments: Any) -> None:
        return

    def do_GET(self) -> None:
        self._serve()

    do_PUT = do_POST = do_DELETE = do_HEAD = do_GET

    def _serve(self) -> None:
        url = urllib.parse.urlsplit(self.path)
        self.query = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
        self.key = urllib.parse.unquote(url.path).lstrip("/").partition("/")[2]
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        operation = self._operation()
        with self.state.lock:
            self.state.requests.append(operation)
            trouble = self.state.take_trouble(operation, self.key or self.query.get("prefix", ""))
            if trouble is not None and trouble.act == CLOSE:
                self.close_connection = True
                return
            try:
                if trouble is not None and isinstance(trouble.act, int):
                    raise _Refused(trouble.act, trouble.code)
                answer: _Answer = getattr(self, f"_{operation}")()
            except _Refused as refused:
                text = f"<Error><Code>{refused.code}</Code><Message>as the test wishes</Message></Error>"
                answer = _Answer(refused.status, b"" if self.command == "HEAD" else text.encode())
        if trouble is not None and trouble.act == LOSE:
            self.close_connection = True
            return
        self._send(answer, is_cut=trouble is not None and trouble.act == CUT)

    def _send(self, answer: _Answer, is_cut: bool) -> None:
        self.send_response(answer.status)
        for name, value in ({"Content-Length": str(len(answer.body))} | answer.headers).items():
            self.send_header(name, value)
        self.end_headers()
        if is_cut:
            self.wfile.write(answer.body[: len(answer.body) // 2])
            self.close_connection = True
        elif self.command != "HEAD":
            self.wfile.write(answer.body)

    def _operation(self) -> str:
        part, upload, copy = "partNumber" in self.query, "uploadId" in self.query, "x-amz-copy-source" in self.headers
        named = {
            "GET": "GetObject" if self.key else "ListMultipartUploads" if "uploads" in self.query else "ListObjectsV2",
            "HEAD": "HeadObject",
            "PUT": "UploadPart" if part else "CopyObject" if copy else "PutObject" if self.key else "CreateBucket",
            "POST": "CompleteMultipartUpload" if upload else "CreateMultipartUpload",
            "DELETE": "AbortMultipartUpload" if upload else "DeleteObject",
        }
        return named[self.command]

    def _check(self, data: bytes, wanted: str | None) -> None:
        if self.state.checks_checksums and wanted and wanted != base64.b64encode(zlib.crc32(data).to_bytes(4, "big")).decode():
            raise _Refused(400, "BadDigest")

    def _require_new(self) -> None:
        if self.state.obeys_conditions and self.headers.get("If-None-Match") == "*" and self.key in self.state.objects:
            raise _Refused(412, "PreconditionFailed")

    def _found(self, key: str) -> Object:
        if key not in self.state.objects:
            raise _Refused(404, "NoSuchKey")
        return self.state.objects[key]

    def _upload(self) -> Upload:
        if self.query["uploadId"] not in self.state.uploads:
            raise _Refused(404, "NoSuchUpload")
        return self.state.uploads[self.query["uploadId"]]

    def _CreateBucket(self) -> _Answer:
        return _Answer()

    def _PutObject(self) -> _Answer:
        self._require_new()
        self._check(self.body, self.headers.get("x-amz-checksum-crc32"))
        metadata = {name.lower(): value for name, value in self.headers.items() if name.lower().startswith("x-amz-meta-")}
        return _Answer(headers={"ETag": self.state.store(self.key, self.body, metadata).etag})

    def _CopyObject(self) -> _Answer:
        source = self._found(urllib.parse.unquote(self.headers["x-amz-copy-source"]).lstrip("/").partition("/")[2])
        copy = self.state.store(self.key, source.data, source.metadata)
        return _Answer(body=f"<CopyObjectResult><ETag>{escape(copy.etag)}</ETag></CopyObjectResult>".encode())

    def _GetObject(self) -> _Answer:
        found = self._found(self.key)
        headers = {"ETag": found.etag, "Last-Modified": formatdate(found.written_at, usegmt=True), **found.metadata}
        asked = self.headers.get("Range")
        if asked is None or not self.state.obeys_ranges:
            return _Answer(body=found.data, headers=headers)
        first, _, last = asked.removeprefix("bytes=").partition("-")
        begin, end = int(first), min(int(last or len(found.data)) + 1, len(found.data))
        if begin >= len(found.data):
            raise _Refused(416, "InvalidRange")
        headers["Content-Range"] = f"bytes {begin}-{end - 1}/{len(found.data)}"
        return _Answer(206, found.data[begin:end], headers)

    def _HeadObject(self) -> _Answer:
        return self._GetObject()

    def _DeleteObject(self) -> _Answer:
        self.state.objects.pop(self.key, None)
        return _Answer(204)

    def _ListObjectsV2(self) -> _Answer:
        prefix, after = self.query.get("prefix", ""), self.query.get("continuation-token", "")
        keys = sorted(key for key in self.state.objects if key.startswith(prefix) and key > after)
        page, rest = keys[:PAGE_KEYS], keys[PAGE_KEYS:]
        items = "".join(f"<Contents><Key>{urllib.parse.quote(key)}</Key>{self._dated(key)}</Contents>" for key in page)
        more = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if rest else ""
        truncated = f"<IsTruncated>{'true' if rest else 'false'}</IsTruncated>"
        body = f"<ListBucketResult><EncodingType>url</EncodingType>{truncated}{more}{items}</ListBucketResult>"
        return _Answer(body=body.encode())

    def _dated(self, key: str) -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(self.state.objects[key].written_at))
        return f"<LastModified>{at}</LastModified><Size>{len(self.state.objects[key].data)}</Size>"

    def _CreateMultipartUpload(self) -> _Answer:
        name = uuid.uuid4().hex
        self.state.uploads[name] = Upload(self.key)
        body = f"<InitiateMultipartUploadResult><UploadId>{name}</UploadId></InitiateMultipartUploadResult>".encode()
        return _Answer(body=body, headers={"x-amz-checksum-type": "FULL_OBJECT"} if self.state.checks_checksums else {})

    def _UploadPart(self) -> _Answer:
        self._check(self.body, self.headers.get("x-amz-checksum-crc32"))
        self._upload().parts[int(self.query["partNumber"])] = self.body
        return _Answer(headers={"ETag": f'"{zlib.crc32(self.body):08x}"'})

    def _CompleteMultipartUpload(self) -> _Answer:
        upload = self._upload()
        self._require_new()
        listed = [int(str(number.text)) for number in ElementTree.fromstring(self.body).iter() if number.tag.endswith("PartNumber")]
        data = b"".join(upload.parts[number] for number in listed if number != self.state.drops_part)
        self._check(data, self.headers.get("x-amz-checksum-crc32"))
        del self.state.uploads[self.query["uploadId"]]
        made = self.state.store(self.key, data, {})
        return _Answer(body=f"<CompleteMultipartUploadResult><ETag>{escape(made.etag)}</ETag></CompleteMultipartUploadResult>".encode())

    def _AbortMultipartUpload(self) -> _Answer:
        self._upload()
        del self.state.uploads[self.query["uploadId"]]
        return _Answer(204)

    def _ListMultipartUploads(self) -> _Answer:
        prefix = self.query.get("prefix", "")
        items = "".join(
            f"<Upload><Key>{urllib.parse.quote(upload.key)}</Key><UploadId>{name}</UploadId></Upload>"
            for name, upload in self.state.uploads.items()
            if upload.key.startswith(prefix)
        )
        return _Answer(body=f"<ListMultipartUploadsResult><EncodingType>url</EncodingType>{items}</ListMultipartUploadsResult>".encode())
