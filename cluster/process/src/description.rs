//! The name, the help and the flags of a process.

/// The flags of every process.
const COMMON_FLAGS: [Flag; 3] = [
    Flag {
        name: "health-listen",
        value: "ADDRESS",
        help: "Where to serve health and metrics over plain HTTP: IP:PORT [default: nowhere]",
    },
    Flag { name: "log", value: "FILTER", help: "The lines to log: a level, or a filter [default: info]" },
    Flag { name: "log-format", value: "text|json", help: "The form of a log line [default: text]" },
];

/// A flag for one setting.
#[derive(Clone, Copy, Debug)]
pub struct Flag {
    /// The flag's name: that of the setting, with `-` for `_`.
    pub name: &'static str,
    /// The placeholder of its value, in capitals.
    pub value: &'static str,
    /// The help text.
    pub help: &'static str,
}

/// The name, the help and the flags of a process.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// The binary's name.
    pub name: &'static str,
    /// The version that it prints.
    pub version: &'static str,
    /// One sentence about the process.
    pub about: &'static str,
    /// Whether clients call it, besides processes of the cluster and their operators.
    pub serves_clients: bool,
    /// Settings that have flags of their own, in addition to those of every process.
    pub flags: &'static [Flag],
}

impl Program {
    pub(crate) fn all_flags(&self) -> impl Iterator<Item = &Flag> {
        self.flags.iter().chain(&COMMON_FLAGS)
    }
}
