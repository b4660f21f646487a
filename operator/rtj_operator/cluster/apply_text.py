"""JSON that is also YAML, as server-side apply reads it. Not a YAML writer: PyYAML leaves ``1e3`` unquoted, for Kubernetes a number.

In YAML a quoted JSON string is always a string, but two things differ. An escape cannot name half of a surrogate pair, as JSON's ASCII form
of an emoji does; and some characters may not stand unescaped (YAML 1.2.2 §5.1, and the line breaks of §5.4, which would be folded).
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

_MUST_BE_ESCAPED: Final = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
_HALF_OF_A_PAIR: Final = re.compile("[\ud800-\udfff]")


def to_apply_text(value: Any) -> str:
    """Return the value as text that is both JSON and YAML; half of a surrogate pair becomes U+FFFD."""
    text = json.dumps(value, ensure_ascii=False)
    text = _HALF_OF_A_PAIR.sub("\ufffd", text)
    return _MUST_BE_ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
