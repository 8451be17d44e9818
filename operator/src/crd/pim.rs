//! Memory modules that compute, for the readers of a cluster.
//!
//! What a cluster's owner decides is here; the other settings of the section `[pim]` keep the
//! defaults of the process.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Memory modules that compute. Each shard of each reader has DPUs of its own. Without them, the
/// processors make all proofs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[x_kube(validation = Rule::new("self.library == 'emulator' || has(self.program)")
    .message("pim.program must be the path of the DPUs' program in the image"))]
#[x_kube(validation = Rule::new("self.library != 'emulator' || (!has(self.program) && !has(self.devices))")
    .message("pim.program and pim.devices are for real modules: the emulator needs neither"))]
#[serde(rename_all = "camelCase")]
pub struct Pim {
    /// `emulator`, or the vendor's library in the image: its path, or its name (`libdpu.so`).
    #[schemars(length(min = 1, max = 512), regex(pattern = super::patterns::LIBRARY))]
    pub library: String,
    /// The path of the DPUs' program in the image; for real modules.
    #[schemars(length(min = 1, max = 512), regex(pattern = super::patterns::PATH))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
    /// The devices that each reader's pod is given; for real modules. Without this field, something
    /// else must give the pods their devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub devices: Option<Devices>,
    /// The number of DPUs of each shard.
    #[schemars(range(min = 1, max = 2560))]
    #[serde(default = "dpus")]
    pub dpus: u32,
    /// Trees with fewer records stay in the processor's memory.
    #[schemars(range(min = 0, max = 1_000_000_000_000_i64))]
    #[serde(default = "records_min")]
    pub records_min: i64,
    /// The number of versions of a shard that are served at most.
    #[schemars(range(min = 1, max = 4096))]
    #[serde(default = "versions_max")]
    pub versions_max: u32,
    /// The number of nodes of a shard that the processor's memory holds at most, some 10 KiB each.
    /// The memory in `resources` must have room for them.
    #[schemars(range(min = 1, max = 67_108_864))]
    #[serde(default = "nodes_max")]
    pub nodes_max: u32,
    /// Where batches go that the processor would answer sooner.
    #[serde(default)]
    pub small_batches: SmallBatches,
}

fn dpus() -> u32 {
    128
}

fn records_min() -> i64 {
    100_000
}

fn versions_max() -> u32 {
    64
}

fn nodes_max() -> u32 {
    262_144
}

/// Devices that a plugin of the machine offers as an extended resource.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Devices {
    /// The name of the extended resource, such as `upmem.example/rank`.
    #[x_kube(validation = Rule::new("!self.contains('kubernetes.io/') && !self.startsWith('requests.')")
        .message("pim.devices.resource must be an extended resource: its domain is not one of Kubernetes"))]
    #[schemars(length(min = 3, max = 253), regex(pattern = super::patterns::RESOURCE))]
    pub resource: String,
    /// How many of them each pod is given: enough for the DPUs of all shards.
    #[schemars(range(min = 1, max = 1024))]
    pub count: u32,
}

/// Where batches go that the processor would answer sooner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SmallBatches {
    /// To the processor.
    #[default]
    Host,
    /// To the modules, for tests and demos.
    Dpus,
}
