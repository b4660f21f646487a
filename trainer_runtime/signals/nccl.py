"""Reads lines of c10d's NCCL process group, of NCCL itself and of gloo: what a rank prints when another rank does not answer.

Nearly all of it comes from victims. Two families of lines are one incident each: "collective" (time-outs and what follows from them, for
many minutes and from every rank) and "nccl_error" (the layers of one failed call). Sources are public issues, named at each rule.
"""

from __future__ import annotations

import re
from typing import Final

from trainer_runtime.contract.evidence import Strength
from trainer_runtime.signals.fault_classes import (
    CONFIG_ERROR,
    HANG,
    IB_LINK,
    NCCL_REMOTE_ERROR,
    NCCL_SYSTEM_ERROR,
    NCCL_TIMEOUT,
    NIC_FAULT,
    NONE,
    RDZV_TIMEOUT,
)
from trainer_runtime.signals.finding import FieldValue
from trainer_runtime.signals.rules import rule

COLLECTIVE: Final = "collective"
NCCL_ERROR: Final = "nccl_error"

GROUP_RANK: Final = re.compile(
    r"\[(?:PG (?:ID )?(?P<group>\d{1,9}) (?:PG GUID \w{1,40}(?:\((?P<name>[^)]{0,80})\))? )?)?Rank (?P<group_rank>\d{1,7})\]"
)
"""The rank inside its process group, which is the global one in the default group only (NVIDIA/nccl#1610 shows both)."""
DEFAULT_GROUP_NAME: Final = "default_pg"

C10D_RULES: Final = (
    # Every torch since 1.x, also inside "thread terminated with exception" and "communicator was aborted" (OFA-Sys/OFA#271,
    # mlfoundations/open_clip#1087).
    rule(
        "Watchdog caught collective operation timeout",
        NCCL_TIMEOUT,
        r"Watchdog caught collective operation timeout(?:: WorkNCCL\(SeqNum=(?P<seq>\d{1,18}), OpType=(?P<op>\w{1,40}))?",
        family=COLLECTIVE,
    ),
    # The state triple of torch 2.4 and later (hiyouga/LLaMA-Factory#6269).
    rule(
        "detected by watchdog at work",
        NCCL_TIMEOUT,
        r"at work: (?P<seq>\d{1,18}), "
        r"last enqueued NCCL work: (?P<last_enqueued>-?\d{1,18}), last completed NCCL work: (?P<last_completed>-?\d{1,18})",
        family=COLLECTIVE,
    ),
    # Told by another rank through the store; rank 8 is the first to notice, itself a waiting victim.
    rule(
        "Received a dump signal due to a collective timeout",
        NCCL_TIMEOUT,
        r"collective timeout from +rank (?P<observer_rank>\d{1,7})",
        family=COLLECTIVE,
    ),
    rule("Observed flight recorder dump signal from another rank", NCCL_TIMEOUT, family=COLLECTIVE),
    # Closing words of a time-out (sgl-project/sglang#1693).
    rule("Some NCCL operations have failed or timed out", NCCL_TIMEOUT, family=COLLECTIVE),
    # The heartbeat monitor, minutes after the time-out that caused it (snowflakedb/ArcticTraining#219, LLaMA-Factory#6953).
    rule("watchdog got stuck for", HANG, r"watchdog got stuck for (?P<stuck_seconds>\d{1,9}) seconds", family=COLLECTIVE),
    rule("Heartbeat monitor timed out", HANG, family=COLLECTIVE),
    # Rank 0's store is gone already: seen in an ordinary end (MiniMax-AI/MiniMax-M1#14).
    rule('Failed to check the "should dump" flag', NONE),
)

NCCL_RULES: Final = (
    # NCCL_DEBUG=INFO, whatever it says: optional plugins, teardown (NVIDIA/nccl-tests#244, #252).
    rule("NCCL INFO", NONE),
    # A full /dev/shm: Kubernetes gives 64 MB by default (NVIDIA/nccl#525, pytorch/ci-infra#490).
    rule("posix_fallocate failed", CONFIG_ERROR, r"posix_fallocate failed ?: No space left"),
    rule("failed to extend /dev/shm", CONFIG_ERROR),
    # The peer ended (NVIDIA/nccl#795, #1514). Its address is the lead.
    rule(
        "Connection closed by remote peer",
        NCCL_REMOTE_ERROR,
        r"Connection closed by remote peer(?: (?P<peer>[^\s<]{1,200}))?",
        family=NCCL_ERROR,
    ),
    rule(" failed : ", NCCL_REMOTE_ERROR, r"Net : Call to \w{1,20} (?:from|to) (?P<peer>[^\s<]{1,200})", family=NCCL_ERROR),
    rule(
        "Failed to execute operation",
        NCCL_REMOTE_ERROR,
        r"Failed to execute operation \w{1,30} from rank (?P<proxy_rank>\d{1,7})",
        family=NCCL_ERROR,
    ),
    # InfiniBand verbs: 12 = retries exceeded, 13 = receiver not ready: the link or the peer (scitix/sichek#44, stanford_alpaca#207).
    rule(
        "Got completion",
        IB_LINK,
        r"NET/IB ?: Got completion from peer (?P<peer>[^\s<]{1,100})<\d+> "
        r"with status=(?P<ib_status>12|13)\b(?:.{0,400}\bhca (?P<hca>\w{1,40}))?",
        merge_by=("hca",),
    ),
    rule("Got completion", IB_LINK, r"NET/IB ?: Got completion with error (?P<ib_status>12|13)\b"),
    # 5 = flushed: always follows another error.
    rule("Got completion", NCCL_REMOTE_ERROR, r"NET/IB ?: Got completion .{0,120}(?:error |status=)(?P<ib_status>5)\b", family=NCCL_ERROR),
    # 4, 9, 10, 11: registration, driver or the far side; no direction (NVIDIA/nccl-tests#252).
    rule(
        "Got completion",
        NCCL_SYSTEM_ERROR,
        r"NET/IB ?: Got completion .{0,120}(?:error |status=)(?P<ib_status>\d{1,3})\b",
        family=NCCL_ERROR,
    ),
    # The HCA itself (NVIDIA/nccl#230, #905).
    rule("local catastrophic error", NIC_FAULT, r"NET/IB ?: (?:(?P<hca>\w{1,40}):\d+ )?.{0,60}local catastrophic error", merge_by=("hca",)),
    rule("port error", IB_LINK, r"NET/IB ?: .{0,60}async event ?: port error"),
    # A queue pair in error: software or configuration (NVIDIA/nccl#1919).
    rule("work queue error", NCCL_SYSTEM_ERROR, r"NET/IB ?: (?P<hca>\w{1,40}):\d+ async fatal event on QP", family=NCCL_ERROR),
    # Metadata of a broken exchange taken for a size (NVIDIA/nccl#1284): not memory.
    rule("Tried to allocate more than 1EB memory", NCCL_SYSTEM_ERROR, strength=Strength.VICTIM, family=NCCL_ERROR),
    # ncclGetErrorString; the line after "Last error:" may say more and then decides.
    rule("ncclRemoteError: ", NCCL_REMOTE_ERROR, family=NCCL_ERROR),
    rule("ncclInternalError: ", NCCL_SYSTEM_ERROR, family=NCCL_ERROR),
    rule("ncclSystemError: ", NCCL_SYSTEM_ERROR, family=NCCL_ERROR),
    rule("ncclUnhandledCudaError: ", NCCL_SYSTEM_ERROR, family=NCCL_ERROR),
    rule("DistBackendError: ", NCCL_REMOTE_ERROR, r"DistBackendError: .*remote process exited", family=NCCL_ERROR),
    rule("DistBackendError: ", NCCL_SYSTEM_ERROR, family=NCCL_ERROR),
)

GLOO_RULES: Final = (
    # The chosen interface cannot reach the others; "no error" is not reassuring (sgl-project/sglang#3226).
    rule("connectFullMesh failed", CONFIG_ERROR, r"Gloo connectFullMesh failed"),
    # pytorch/pytorch#75512, RVC-Project's WebUI#1882.
    rule("gloo/transport/tcp/pair.cc", NCCL_REMOTE_ERROR, r"pair\.cc:\d+\] .{0,40}\[(?P<peer>[^\]]{1,80})\]", family=NCCL_ERROR),
    # One rank was busy elsewhere, e.g. saving (meta-pytorch/torchtune#2676).
    rule(
        "Timed out waiting ",
        NCCL_TIMEOUT,
        r"unbound_buffer\.cc:\d+\] Timed out waiting (?P<waited_ms>\d{1,12})ms for \w{1,10} operation",
        family=COLLECTIVE,
    ),
)

STORE_RULES: Final = (
    # The store of rank 0 is not there: wrong address at first, a lost worker later (pytorch/pytorch#79388).
    rule(
        "client socket has timed out",
        RDZV_TIMEOUT,
        r"client socket has timed out after \d{1,12}m?s while trying to connect to \((?P<peer>[^,)]{1,200}), \d+\)",
    ),
    # Peers that never came (pytorch/pytorch#111805).
    rule(
        "DistStoreError: ",
        RDZV_TIMEOUT,
        r"Timed out after \d{1,9} seconds waiting for \w{1,10}\. (?P<joined>\d{1,7})/(?P<expected>\d{1,7}) \w{1,10} joined",
    ),
    rule("DistStoreError: ", RDZV_TIMEOUT),
    rule("DistNetworkError: ", NCCL_REMOTE_ERROR, family=NCCL_ERROR),
)

RULES: Final = (*C10D_RULES, *NCCL_RULES, *GLOO_RULES, *STORE_RULES)


def read_group_rank(body: str) -> dict[str, FieldValue]:
    """Return ``group_rank``, and ``rank`` too when c10d says that the group is the default one."""
    match = GROUP_RANK.search(body) if "Rank " in body else None
    if match is None:
        return {}
    group_rank = int(match["group_rank"])
    if match["name"] == DEFAULT_GROUP_NAME:
        return {"group_rank": group_rank, "rank": group_rank}
    return {"group_rank": group_rank}
