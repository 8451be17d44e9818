//! What a member's cosigners say about themselves, for people and monitors.

use serde::Serialize;

use crate::witness::Status;

/// What `coppice cosigner status` says.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The witness.
    #[serde(flatten)]
    pub witness: Status,
    /// The auditor, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auditor: Option<Audited>,
}

/// What is said of an auditor.
#[derive(Clone, Debug, Serialize)]
pub struct Audited {
    /// Its state machine, whose log is what was replayed.
    #[serde(flatten)]
    pub status: Status,
    /// The version that was replayed last.
    pub version: u64,
    /// Versions that were rolled back before they were replayed.
    pub vanished_versions: u64,
    /// The reason why nothing is replayed, if there is one; unknown if it does not run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<String>,
}

impl Report {
    /// Whether one of the two has halted.
    #[must_use]
    pub fn is_halted(&self) -> bool {
        self.witness.halted.is_some() || self.auditor.as_ref().is_some_and(|auditor| auditor.status.halted.is_some())
    }
}

impl Report {
    /// The report in the text format of Prometheus.
    #[must_use]
    pub fn metrics(&self) -> String {
        let status = &self.witness;
        let mut gauges = vec![
            ("log_entries", "Entries of the mirrored log", status.log_entries),
            ("cosigned_entries", "Entries of the log that was cosigned last", status.cosigned_entries),
            ("cosigned_time_seconds", "Time of the last cosignature since 1970", status.cosigned_at.unwrap_or(0)),
            ("halted", "Whether evidence has halted this cosigner", u64::from(status.halted.is_some())),
            ("evidence_files", "Evidence files that this cosigner has", status.evidence.len() as u64),
            (
                "may_sign",
                "Whether others have said what they saw of this cosigner",
                u64::from(status.floor == Some(true)),
            ),
            ("pending_checkpoints", "Signed checkpoints that are larger than the log", status.pending as u64),
        ];
        if let Some(Audited { status, version, vanished_versions, waits_for }) = &self.auditor {
            gauges.extend([
                ("audited_entries", "Entries of the log whose versions were replayed", status.log_entries),
                ("audited_version", "The version that was replayed last", *version),
                ("audit_cosigned_entries", "Entries that the auditor cosigned last", status.cosigned_entries),
                (
                    "audit_halted",
                    "Whether evidence or a finding has halted the auditor",
                    u64::from(status.halted.is_some()),
                ),
                ("audit_waits", "Whether the auditor lacks something that it needs", u64::from(waits_for.is_some())),
                ("vanished_versions", "Versions that were rolled back before they were replayed", *vanished_versions),
            ]);
        }
        let one = |(name, help, value): (&str, &str, u64)| {
            let name = format!("coppice_cosigner_{name}");
            format!("# HELP {name} {help}\n# TYPE {name} gauge\n{name} {value}\n")
        };
        gauges.into_iter().map(one).collect()
    }
}
