//! What texts in resources may look like, as regular expressions of the API server.

/// Names of Kubernetes objects. They become parts of paths, where a slash would lead elsewhere.
pub const NAME: &str = "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$";
/// Image references, as registries accept them.
pub const IMAGE: &str = "^[a-zA-Z0-9][a-zA-Z0-9._:/@-]*$";
/// Tags and digests of images.
pub const TAG: &str = "^([a-zA-Z0-9_][a-zA-Z0-9._-]*|sha256:[0-9a-f]{64})$";
/// Names of hosts in certificates; the first label may be a star.
pub const HOST: &str = r"^(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";
/// Texts that people read. Control and other invisible characters are excluded; the ledger refuses
/// a few more.
pub const TEXT: &str = r"^[^\p{Cc}\p{Cf}\p{Zl}\p{Zp}]+$";
/// Certificates as PEM.
pub const CERTIFICATES: &str = r"^-----BEGIN CERTIFICATE-----[ -~\n]+$";
/// Printable ASCII without spaces.
pub const WORD: &str = "^[!-~]+$";
/// Names of zones, as the values of labels on machines.
pub const ZONE: &str = "^[a-zA-Z0-9]([-a-zA-Z0-9._]*[a-zA-Z0-9])?$";
/// The word for emulated memory modules, or the library of real ones: its name, or its path in the
/// image.
pub const LIBRARY: &str = r"^(emulator|[a-zA-Z0-9._+/-]+\.so(\.[0-9]+)*)$";
/// Paths of files in the image.
pub const PATH: &str = "^/[a-zA-Z0-9._+/-]+$";
/// Names of extended resources: a domain, and a name in it.
pub const RESOURCE: &str = "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[a-zA-Z0-9]([-a-zA-Z0-9._]*[a-zA-Z0-9])?$";
/// Lines of printable ASCII.
pub const LINES: &str = r"^[ -~\t\n]+$";
