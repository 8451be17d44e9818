//! Settings: TOML files, overridden by the environment, overridden by flags.
//!
//! Settings can be printed, since they hold no secrets, only the names of files with secrets.
//!
//! Every key of every source must be known. The variable `COPPICE_<KEY>` sets a key, with `__`
//! between the parts of a nested key. Variables of the `coppice` command are ignored.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use config::{Config, Environment, File, FileFormat};
use serde::{Serialize, de::DeserializeOwned};

use crate::Failure;

/// The beginning of every variable's name.
const PREFIX: &str = "COPPICE_";
/// Variables of the `coppice` command, and the one that names the settings file.
const OTHERS: &[&str] = &["ENDPOINT", "TRUST", "CA", "CLIENT_CERT", "CLIENT_KEY", "CONFIG"];

/// The sources of settings. Each overrides those before it.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    pub files: Vec<PathBuf>,
    pub environment: Vec<(String, String)>,
    /// Keys and values from the command line.
    pub flags: Vec<(String, String)>,
}

impl Sources {
    /// The settings in force.
    ///
    /// # Errors
    /// If a file can't be read, or a key is unknown, missing, or has a value that is not allowed.
    /// Names the key.
    pub fn load<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        let mut builder = Config::builder();
        for path in &self.files {
            let text = std::fs::read_to_string(path).map_err(|error| {
                Failure::file(path, &error).hint("--config names the file of settings; docs/operations.md shows one.")
            })?;
            // Parsed alone first, so that an error names the file.
            let file = File::from_str(&text, FileFormat::Toml);
            Config::builder()
                .add_source(file.clone())
                .build()
                .map_err(|error| Failure::usage(format!("{}: {error}", path.display())))?;
            builder = builder.add_source(file);
        }
        let environment = Environment::with_prefix(PREFIX.trim_end_matches('_'))
            .prefix_separator("_")
            .separator("__")
            .source(Some(self.variables().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()));
        builder = builder.add_source(environment);
        for (key, value) in &self.flags {
            builder = builder
                .set_override(key, value.as_str())
                .map_err(|error| Failure::usage(format!("setting `{key}`: {error}")))?;
        }
        let settings = builder.build().and_then(Config::try_deserialize);
        settings.map_err(|error| self.blame(&error.to_string()))
    }

    /// The variables that are settings. An empty variable counts as not set.
    fn variables(&self) -> impl Iterator<Item = (&str, &str)> {
        let ours = |name: &str| name.strip_prefix(PREFIX).is_some_and(|key| !OTHERS.contains(&key));
        let all = self.environment.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        all.filter(move |(name, value)| ours(name) && !value.is_empty())
    }

    /// Adds the source of the wrong key to an error, if the key's name shows it.
    fn blame(&self, error: &str) -> Failure {
        let named = error.split('`').nth(1).or_else(|| error.split('"').nth(1)).unwrap_or_default();
        let key = named.rsplit('.').next().unwrap_or_default();
        let last = |name: &str, separator: &str| name.rsplit(separator).next().unwrap_or_default().to_lowercase();
        let variable = self.variables().find(|(name, _)| last(name.trim_start_matches(PREFIX), "__") == key);
        let flag = self.flags.iter().find(|(name, _)| last(name, ".") == key);
        let files: Vec<String> = self.files.iter().map(|path| path.display().to_string()).collect();
        let place = match (flag, variable) {
            (Some((name, _)), _) => format!("flag for `{name}`"),
            (None, Some((name, _))) => format!("environment variable {name}"),
            (None, None) if files.is_empty() => "no --config was given".to_owned(),
            (None, None) => files.join(", "),
        };
        Failure::usage(format!("configuration: {error} ({place})"))
            .hint("docs/operations.md describes every key; --print-config shows what is in force.")
    }
}

/// A duration from a setting in ms.
#[must_use]
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The settings as TOML.
///
/// # Errors
/// If TOML can't express them.
pub fn print<T: Serialize>(settings: &T) -> Result<String, Failure> {
    toml::to_string(settings).map_err(|error| Failure::usage(format!("the settings cannot be printed: {error}")))
}

/// The text of a file that the settings name.
///
/// # Errors
/// If it can't be read as text.
pub fn read_text(path: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(path).map_err(|error| Failure::file(path, &error))
}

/// The text of a file that the settings name and that only its owner and group may read.
///
/// # Errors
/// If it can't be read as text, or others may read it.
pub fn read_secret(path: &Path) -> Result<String, Failure> {
    coppice_env::read_secret(path).map_err(|error| Failure::file(path, &error))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    struct Part {
        file: String,
        size: u32,
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Whole {
        name: String,
        #[serde(default)]
        part: Part,
        #[serde(default)]
        map: BTreeMap<String, Part>,
    }

    type Pairs<'a> = &'a [(&'a str, &'a str)];

    fn sources(file: &str, environment: Pairs<'_>, flags: Pairs<'_>) -> (tempfile::TempDir, Sources) {
        let pairs =
            |pairs: Pairs<'_>| pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("node.toml");
        std::fs::write(&path, file).expect("a file can be written");
        let sources = Sources { files: vec![path], environment: pairs(environment), flags: pairs(flags) };
        (dir, sources)
    }

    fn refused(file: &str, environment: Pairs<'_>, flags: Pairs<'_>) -> String {
        let (_dir, sources) = sources(file, environment, flags);
        sources.load::<Whole>().expect_err("a key is wrong").to_string()
    }

    #[test]
    fn flags_override_the_environment_which_overrides_the_file() {
        let file = "name = 'a'\n[part]\nfile = 'x'\nsize = 1\n[map.one-1]\nsize = 5";
        let (_dir, all) = sources(
            file,
            &[
                ("COPPICE_PART__FILE", "y"),
                ("COPPICE_PART__SIZE", "2"),
                ("COPPICE_NAME", ""),
                ("COPPICE_ENDPOINT", "e"),
                ("PATH", "p"),
            ],
            &[("part.size", "3")],
        );
        let whole: Whole = all.load().expect("all keys are known");
        assert_eq!((whole.name.as_str(), &whole.part), ("a", &Part { file: "y".to_owned(), size: 3 }));
        assert_eq!(whole.map["one-1"].size, 5);
    }

    #[test]
    fn an_unknown_key_is_named_with_its_place() {
        let cases: [(&str, Pairs<'_>, Pairs<'_>, [&str; 2]); 5] = [
            ("name = 'a'\nnaem = 1", &[], &[], ["`naem`", "node.toml"]),
            ("name = 'a'\n[part]\nfil = 1", &[], &[], ["`fil`", "node.toml"]),
            ("name = 'a'", &[("COPPICE_NAEM", "1")], &[], ["`naem`", "COPPICE_NAEM"]),
            ("name = 'a'", &[("COPPICE_PART__FIL", "1")], &[], ["`fil`", "COPPICE_PART__FIL"]),
            ("name = 'a'", &[], &[("part.fil", "1")], ["`fil`", "flag"]),
        ];
        for (file, environment, flags, parts) in cases {
            let error = refused(file, environment, flags);
            assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        }
    }

    #[test]
    fn missing_and_malformed_values_are_named() {
        assert!(refused("", &[], &[]).contains("\"name\""));
        assert!(refused("name = 'a'", &[("COPPICE_PART__SIZE", "many")], &[]).contains("COPPICE_PART__SIZE"));
        assert!(refused("name = [", &[], &[]).contains("node.toml"));
        let missing = Sources { files: vec![PathBuf::from("/nonexistent/node.toml")], ..Sources::default() };
        assert!(missing.load::<Whole>().expect_err("there is no file").message.contains("/nonexistent/node.toml"));
    }

    #[test]
    fn what_is_printed_can_be_read_again() {
        let (_dir, all) = sources("name = 'a'\n[part]\nsize = 1", &[], &[]);
        let whole: Whole = all.load().expect("all keys are known");
        let printed = print(&whole).expect("it can be printed");
        let (_dir, again) = sources(&printed, &[], &[]);
        assert_eq!(again.load::<Whole>().expect("it is a file of settings").part, whole.part);
    }
}
