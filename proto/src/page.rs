//! The methods that a page in a browser may call.

/// Whether a method changes nothing, so that a page in a browser may call it by gRPC-web.
#[must_use]
pub fn may_call(path: &str) -> bool {
    let Some(method) = path.strip_prefix("/coppice.v1.Ledger/") else {
        return path == "/grpc.health.v1.Health/Check";
    };
    let records = ["Get", "BatchGet", "QueryBatch", "Range", "History", "Diff", "Journal"];
    let log = ["Head", "GetHeader", "WatchHeads", "GetCheckpoint", "Time", "GetInterval", "Status", "ListPins"];
    let ledgers = ["ListLedgers", "DescribeLedger", "ListMembers", "GetMember", "GetJournals", "GetLedgerHashes"];
    let journals = ["GetLineage", "VerifyJournal", "GetLedgerRecords", "ErasureStatus"];
    [&records[..], &log, &ledgers, &journals].iter().any(|names| names.contains(&method))
}
