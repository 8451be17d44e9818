//! The one table of methods and the roles that may call them.

use crate::identity::{
    Role::{Auditor, Coordinator, Cosigner, Member, Node, Operator, Reader, Writer},
    Roles,
};

/// Every role, for health checks: they reveal nothing about records.
const ANY: Roles = Roles::of(&[Reader, Writer, Operator, Auditor, Member, Cosigner, Node, Coordinator]);
/// The root log: headers and checkpoints, which strangers may see as well, and the status of the
/// cluster.
const LOG: Roles = Roles::of(&[Reader, Writer, Operator, Auditor, Member, Coordinator]);
/// Records and their proofs.
const READ: Roles = Roles::of(&[Reader, Writer, Auditor, Coordinator]);
/// All batches of the ledger.
const AUDIT: Roles = Roles::of(&[Auditor, Coordinator]);
/// Requests for cosignatures. The caller's certificate must also be for the process that it says it
/// is.
const COSIGN: Roles = Roles::of(&[Cosigner]);
/// Journals of ledgers of members. A member sees the ledgers that have it; an auditor sees all of
/// them, without payloads.
const LEDGERS: Roles = Roles::of(&[Auditor, Member, Coordinator]);
/// Appends to ledgers of members. A coordinator forwards them.
const APPEND: Roles = Roles::of(&[Member, Coordinator]);
/// Changes of records. A coordinator forwards the calls of its own callers.
const WRITE: Roles = Roles::of(&[Writer, Coordinator]);
/// All other changes of the ledger or the cluster.
const OPERATE: Roles = Roles::of(&[Operator, Coordinator]);
/// Messages between nodes.
const AMONG_NODES: Roles = Roles::of(&[Node]);
/// Requests of coordinators to nodes.
const BY_COORDINATORS: Roles = Roles::of(&[Coordinator]);
/// Requests of nodes and coordinators to nodes.
const INSIDE: Roles = Roles::of(&[Node, Coordinator]);

const METHODS: [(&str, Roles); 60] = [
    ("/coppice.v1.Ledger/Commit", WRITE),
    ("/coppice.v1.Ledger/CommitStream", WRITE),
    ("/coppice.v1.Ledger/Stage", WRITE),
    ("/coppice.v1.Ledger/Finalize", WRITE),
    ("/coppice.v1.Ledger/Discard", WRITE),
    ("/coppice.v1.Ledger/OpenSession", WRITE),
    ("/coppice.v1.Ledger/Get", READ),
    ("/coppice.v1.Ledger/BatchGet", READ),
    ("/coppice.v1.Ledger/QueryBatch", READ),
    ("/coppice.v1.Ledger/Range", READ),
    ("/coppice.v1.Ledger/History", READ),
    ("/coppice.v1.Ledger/Diff", READ),
    ("/coppice.v1.Ledger/Journal", AUDIT),
    ("/coppice.v1.Ledger/Witness", COSIGN),
    ("/coppice.v1.Ledger/Append", APPEND),
    ("/coppice.v1.Ledger/ListLedgers", LEDGERS),
    ("/coppice.v1.Ledger/DescribeLedger", LEDGERS),
    ("/coppice.v1.Ledger/ListMembers", LEDGERS),
    ("/coppice.v1.Ledger/GetMember", LEDGERS),
    ("/coppice.v1.Ledger/GetJournals", LEDGERS),
    ("/coppice.v1.Ledger/GetLedgerHashes", LEDGERS),
    ("/coppice.v1.Ledger/GetLineage", LEDGERS),
    ("/coppice.v1.Ledger/VerifyJournal", LEDGERS),
    ("/coppice.v1.Ledger/GetLedgerRecords", LEDGERS),
    ("/coppice.v1.Ledger/ErasureStatus", LEDGERS),
    ("/coppice.v1.Ledger/Head", LOG),
    ("/coppice.v1.Ledger/GetHeader", LOG),
    ("/coppice.v1.Ledger/WatchHeads", LOG),
    ("/coppice.v1.Ledger/GetCheckpoint", LOG),
    ("/coppice.v1.Ledger/Time", LOG),
    ("/coppice.v1.Ledger/GetInterval", LOG),
    ("/coppice.v1.Ledger/Status", LOG),
    ("/coppice.v1.Ledger/ListPins", LOG),
    ("/coppice.v1.Ledger/Prune", OPERATE),
    ("/coppice.v1.Ledger/Rollback", OPERATE),
    ("/coppice.v1.Ledger/RotateKey", OPERATE),
    ("/coppice.v1.Ledger/Anchor", OPERATE),
    ("/coppice.v1.Ledger/Pin", OPERATE),
    ("/coppice.v1.Ledger/Unpin", OPERATE),
    ("/coppice.v1.Ledger/TransferLeader", OPERATE),
    ("/coppice.v1.Peer/Exchange", AMONG_NODES),
    ("/coppice.v1.Peer/FetchSnapshot", AMONG_NODES),
    ("/coppice.v1.Shard/Prepare", BY_COORDINATORS),
    ("/coppice.v1.Shard/Command", BY_COORDINATORS),
    ("/coppice.v1.Shard/Read", BY_COORDINATORS),
    ("/coppice.v1.Shard/Scan", BY_COORDINATORS),
    ("/coppice.v1.Root/TakeOver", BY_COORDINATORS),
    ("/coppice.v1.Root/AppendHeader", BY_COORDINATORS),
    ("/coppice.v1.Root/OpenRootSession", BY_COORDINATORS),
    ("/coppice.v1.Root/SetPin", BY_COORDINATORS),
    ("/coppice.v1.Root/DropPin", BY_COORDINATORS),
    ("/coppice.v1.Root/Attest", BY_COORDINATORS),
    // Nodes compare their clocks with its answer.
    ("/coppice.v1.Root/ReadRoot", INSIDE),
    ("/coppice.v1.Node/NodeStatus", INSIDE),
    ("/coppice.v1.Node/Leads", INSIDE),
    ("/coppice.v1.Node/ChangeMember", INSIDE),
    ("/grpc.health.v1.Health/Check", ANY),
    ("/grpc.health.v1.Health/Watch", ANY),
    ("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", LOG),
    // Many tools know this version alone.
    ("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", LOG),
];

/// The roles that may call the method of a path; `None` if there is no such method.
#[must_use]
pub fn allowed(path: &str) -> Option<Roles> {
    METHODS.iter().find(|(method, _)| *method == path).map(|(_, roles)| *roles)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use coppice_proto::page;
    use prost::Message;
    use prost_types::FileDescriptorSet;

    use super::*;

    /// The paths of all methods of all services in a descriptor set.
    fn methods(descriptors: &[u8]) -> BTreeSet<String> {
        let set = FileDescriptorSet::decode(descriptors).expect("it is a set of descriptors");
        let of_file = |file: &prost_types::FileDescriptorProto| -> Vec<String> {
            let package = file.package().to_owned();
            let of_service = |service: &prost_types::ServiceDescriptorProto| -> Vec<String> {
                let path = |name: &str| format!("/{package}.{}/{name}", service.name());
                service.method.iter().map(|method| path(method.name())).collect()
            };
            file.service.iter().flat_map(of_service).collect()
        };
        set.file.iter().flat_map(of_file).collect()
    }

    #[test]
    fn every_method_of_every_service_is_in_the_table_and_no_other() {
        let served = [
            coppice_proto::DESCRIPTOR,
            tonic_health::pb::FILE_DESCRIPTOR_SET,
            tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET,
            tonic_reflection::pb::v1alpha::FILE_DESCRIPTOR_SET,
        ];
        let served: BTreeSet<String> = served.into_iter().flat_map(methods).collect();
        let known: BTreeSet<String> = METHODS.iter().map(|(path, _)| (*path).to_owned()).collect();
        assert_eq!(known, served);
        assert_eq!(known.len(), METHODS.len(), "none is in it twice");
    }

    #[test]
    fn no_client_may_call_what_only_the_cluster_says_to_itself() {
        let clients = Roles::of(&[Reader, Writer, Operator, Auditor, Member, Cosigner]);
        for (path, roles) in METHODS {
            let inside =
                ["Peer", "Shard", "Root", "Node"].iter().any(|name| path.starts_with(&format!("/coppice.v1.{name}/")));
            assert_eq!(inside, !roles.meets(clients), "{path}");
        }
    }

    #[test]
    fn a_page_in_a_browser_may_call_what_only_reads() {
        for (path, roles) in METHODS {
            let reads = [ANY, LOG, READ, AUDIT, LEDGERS].contains(&roles);
            // Reflection is a stream of questions, and the watch of health never ends.
            let left_out = path.ends_with("/ServerReflectionInfo") || path == "/grpc.health.v1.Health/Watch";
            assert_eq!(page::may_call(path), reads && !left_out, "{path}");
        }
        assert!(!page::may_call("/coppice.v1.Ledger/Nothing"));
    }

    #[test]
    fn a_method_outside_the_table_is_allowed_to_nobody() {
        for path in [
            "",
            "/",
            "/coppice.v1.Ledger/",
            "/coppice.v1.Ledger/commit",
            "/coppice.v1.Ledger/Get/",
            "//coppice.v1.Ledger/Get",
        ] {
            assert_eq!(allowed(path), None, "{path}");
        }
    }
}
