"""Bytes on their way: an object as it comes from the server, and a part of memory as boto reads it. Neither holds a whole file."""

from __future__ import annotations

from typing import Any, Final

from botocore.exceptions import ClientError

from trainer_runtime.errors import StoreUnavailable
from trainer_runtime.store.s3.answers import status_of
from trainer_runtime.store.s3.api import Api


class Stream:
    """An object's bytes from ``begin`` on, ``length`` of them at most. A connection that breaks is opened again where it broke."""

    def __init__(self, api: Api, key: str, begin: int = 0, length: int | None = None) -> None:
        self._api, self._key = api, key
        self._at = begin
        self._end: int | None = None if length is None else begin + length
        self._is_end_known = False
        self._body: Any = None

    def read_into(self, view: memoryview) -> int:
        """Fill ``view`` and return the number of bytes: fewer only at the end. Raises NotInStore and StoreUnavailable."""
        done = 0

        def fill() -> int:
            nonlocal done
            try:
                while done < len(view) and not (self._is_end_known and self._at == self._end):
                    if self._body is None and not self._open():
                        break
                    got = self._body.readinto(view[done:])
                    if got == 0:
                        break
                    done += got
                    self._at += got
            except Exception:
                self.close()
                raise
            return done

        return self._api.call("read", self._key, fill)

    def close(self) -> None:
        """Let the connection go."""
        if self._body is not None:
            self._body.close()
            self._body = None

    def _open(self) -> bool:
        """Return False when the object ends before the place to begin at."""
        request = {"Bucket": self._api.bucket, "Key": self._key}
        if self._at > 0 or self._end is not None:
            request["Range"] = f"bytes={self._at}-{'' if self._end is None else self._end - 1}"
        try:
            answer = self._api.client.get_object(**request)
        except ClientError as error:
            if status_of(error) == 416:
                return False
            raise
        if "Range" in request and not str(answer.get("ContentRange", "")).startswith(f"bytes {self._at}-"):
            answer["Body"].close()
            raise StoreUnavailable(f"s3://{self._api.bucket}/{self._key}: this server does not obey ranged reads (GetObject with Range)")
        self._body = answer["Body"]
        self._end, self._is_end_known = self._at + int(answer["ContentLength"]), True
        return True


class Window:
    """A part of memory as the file that boto reads a body from, without a copy: what it reads are views."""

    _STEP: Final = 1024 * 1024

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory
        self._at = 0

    def __len__(self) -> int:
        return len(self._memory)

    def read(self, size: int = -1) -> memoryview:
        """Return at least ``size`` bytes while there are any: the connection asks for 16 KiB at a time, a call for each costs too much."""
        end = len(self._memory) if size < 0 else self._at + max(size, self._STEP)
        piece = self._memory[self._at : end]
        self._at += len(piece)
        return piece

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, len(self._memory))[whence]
        return self._at

    def tell(self) -> int:
        return self._at
