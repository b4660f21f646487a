"""What an answer of the server, or its absence, means: try again, read and decide, not there, or one clear sentence for a person.

Pure but for its look at boto's exceptions. It sends nothing.
"""

from __future__ import annotations

from typing import Any, Final

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    HTTPClientError,
    IncompleteReadError,
    NoCredentialsError,
    PartialCredentialsError,
    ProxyConnectionError,
    SSLError,
)
from botocore.exceptions import ConnectionError as NotConnected
from botocore.parsers import ResponseParserError

PASSING_STATUS: Final = frozenset({408, 409, 429, 500, 502, 503, 504})
"""Answers after which the same request may succeed. 409 is a conditional write that met another one on the way."""
UNDECIDED_STATUS: Final = frozenset({408, 500, 502, 504})
"""Answers after which a write may have happened all the same."""
PASSING_CODES: Final = frozenset({"BadDigest", "RequestTimeout", "SlowDown", "Throttling", "ThrottlingException"})
"""The same by name. BadDigest: the bytes that came were not those that were sent."""
_KEYS: Final = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (from a Secret), or let the pod's service account have a role"
_FIXES: Final = {
    "AccessDenied": "access denied; the credentials need s3:GetObject, s3:PutObject, s3:DeleteObject, s3:AbortMultipartUpload and "
    "s3:ListBucketMultipartUploads on this prefix, and s3:ListBucket on the bucket",
    "AllAccessDisabled": "all access to this bucket is switched off",
    "ExpiredToken": "the session token has expired; the credentials must be renewed while the job runs",
    "InvalidAccessKeyId": f"the access key id is unknown to the server; {_KEYS}",
    "InvalidToken": "the session token is not valid",
    "NoSuchBucket": "there is no such bucket; make it, or correct the store's URL (s3://bucket/prefix) or the endpoint",
    "NotImplemented": "the server does not know this request",
    "PermanentRedirect": "the bucket lies in another region; set checkpoint.s3.region or RTJ_S3_REGION",
    "AuthorizationHeaderMalformed": "the bucket lies in another region; set checkpoint.s3.region or RTJ_S3_REGION",
    "RequestTimeTooSkewed": "this machine's clock is more than 15 minutes off",
    "SignatureDoesNotMatch": "the secret access key does not fit the access key id",
    "QuotaExceeded": "the quota of the bucket is used up",
    "XMinioStorageFull": "no space left on the server",
}


def status_of(error: BaseException) -> int:
    """Return the HTTP status of an answer; 0 when there was none."""
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)) if isinstance(error, ClientError) else 0


def code_of(error: BaseException) -> str:
    """Return S3's word for an error, or an empty string."""
    return str(error.response.get("Error", {}).get("Code", "")) if isinstance(error, ClientError) else ""


def is_passing(error: BaseException) -> bool:
    """Say whether the same request may succeed when it is sent again."""
    if isinstance(error, ClientError):
        return status_of(error) in PASSING_STATUS or code_of(error) in PASSING_CODES
    if isinstance(error, (SSLError, ProxyConnectionError)):
        return False
    return isinstance(error, (NotConnected, HTTPClientError, IncompleteReadError, ResponseParserError, ConnectionError))


def is_undecided(error: BaseException) -> bool:
    """Say whether a write that ended so may have happened all the same."""
    if isinstance(error, ClientError):
        return status_of(error) in UNDECIDED_STATUS or code_of(error) == "RequestTimeout"
    return is_passing(error) and not isinstance(error, NotConnected)


def is_absent(error: BaseException) -> bool:
    """Say whether the server answered that it has no such object (and not that it has no such bucket)."""
    return status_of(error) == 404 and code_of(error) not in ("NoSuchBucket", "NoSuchUpload")


def is_refused_condition(error: BaseException) -> bool:
    """Say whether the object was there already."""
    return status_of(error) == 412


def describe(error: BaseException) -> str:
    """Return the cause in words, with the fix where there is one."""
    if isinstance(error, (NoCredentialsError, PartialCredentialsError)):
        return f"no credentials for S3 were found; {_KEYS}"
    if isinstance(error, SSLError):
        return f"the server's certificate is not trusted ({error}); give its CA in AWS_CA_BUNDLE"
    if isinstance(error, NotConnected):
        return f"{error}; does checkpoint.s3.endpoint (or RTJ_S3_ENDPOINT) name the server, and can this pod reach it?"
    if isinstance(error, ClientError):
        code = code_of(error)
        if status_of(error) == 403 and code not in _FIXES:
            code = "AccessDenied"  # a HEAD has no body, so no code
        if code in _FIXES:
            return _FIXES[code]
        message: Any = error.response.get("Error", {}).get("Message", "")
        return f"the server answered {status_of(error)} {code} {message}".rstrip()
    if isinstance(error, BotoCoreError):
        return str(error)
    return f"{type(error).__name__}: {error}"
