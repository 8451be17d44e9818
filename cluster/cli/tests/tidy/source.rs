//! Source files of the repository, and the parts of them that the rules look at.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Folders that hold what is built or fetched, and no source.
const NO_SOURCE: &[&str] = &["target", "dist", "node_modules", "__pycache__", "testdata", "golden"];

/// The ending of files that a tool generates from `proto/`. A test of theirs compares them with it.
const GENERATED: &str = ".pb.go";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    Rust,
    Python,
    Go,
    JavaScript,
    Shell,
    Yaml,
    Markdown,
}

pub struct Source {
    /// Path below the root, with `/` between its parts.
    pub path: String,
    pub language: Language,
    pub text: String,
}

impl Language {
    fn of(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()? {
            "rs" => Some(Self::Rust),
            "py" => Some(Self::Python),
            "go" => Some(Self::Go),
            "js" | "jsx" | "mjs" => Some(Self::JavaScript),
            "sh" => Some(Self::Shell),
            "yaml" | "yml" | "toml" => Some(Self::Yaml),
            "md" => Some(Self::Markdown),
            _ => None,
        }
    }

    /// The beginning of a line that is only a comment.
    fn comment(self) -> &'static str {
        match self {
            Self::Rust | Self::Go | Self::JavaScript => "//",
            Self::Python | Self::Shell | Self::Yaml => "#",
            Self::Markdown => "",
        }
    }

    /// Whether files of the language hold code in which indentation shows the functions.
    pub fn is_code(self) -> bool {
        matches!(self, Self::Rust | Self::Python | Self::Go | Self::JavaScript)
    }
}

/// Returns every source file below `root`, by path.
pub fn sources(root: &Path) -> Vec<Source> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        for path in entries.map(|entry| entry.expect("a folder that was opened can be read").path()) {
            let name = path.file_name().and_then(|name| name.to_str()).expect("names are text");
            let hidden = name.starts_with('.') && name != ".ci";
            if path.is_dir() && !hidden && !NO_SOURCE.contains(&name) {
                folders.push(path);
            } else if path.is_file() {
                found.extend(source(root, &path));
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

fn source(root: &Path, path: &PathBuf) -> Option<Source> {
    if path.to_str().is_some_and(|path| path.ends_with(GENERATED)) {
        return None;
    }
    let language = Language::of(path)?;
    let below = path.strip_prefix(root).expect("the path was found below the root");
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    Some(Source { path: below.to_str().expect("names are text").replace('\\', "/"), language, text })
}

impl Source {
    /// Returns the lines of prose with their numbers: whole-line comments, docstrings, and pages.
    /// Tables, pictures and code in pages are left out.
    pub fn prose(&self) -> Vec<(usize, &str)> {
        let mut quoted = false;
        let mut prose = Vec::new();
        for (number, line) in self.text.lines().enumerate() {
            let trimmed = line.trim_start();
            let is_prose = match self.language {
                Language::Markdown => {
                    let fence = trimmed.starts_with("```");
                    quoted ^= fence;
                    !quoted && !fence && !trimmed.starts_with(['|', '!'])
                }
                Language::Python => {
                    let quotes = trimmed.matches("\"\"\"").count();
                    let inside = quoted || trimmed.starts_with("\"\"\"");
                    quoted ^= quotes % 2 == 1;
                    inside || trimmed.starts_with('#')
                }
                language => trimmed.starts_with(language.comment()),
            };
            if is_prose {
                prose.push((number + 1, line));
            }
        }
        prose
    }

    /// Returns the functions of the file: the number of the first line, the name and the number of
    /// lines of each. Formatters indent code, so a function ends at the indentation of its first
    /// line.
    pub fn functions(&self) -> Vec<(usize, &str, usize)> {
        let lines: Vec<&str> = self.text.lines().collect();
        let mut functions = Vec::new();
        for (first, line) in lines.iter().enumerate() {
            let Some(name) = self.function_name(line) else { continue };
            let last = match self.language {
                Language::Python => last_line_by_indent(&lines, first),
                _ => last_line_by_brace(&lines, first),
            };
            functions.push((first + 1, name, last - first + 1));
        }
        functions
    }

    fn function_name<'l>(&self, line: &'l str) -> Option<&'l str> {
        let (keyword, before): (&str, &[&str]) = match self.language {
            Language::Rust => {
                ("fn", &["pub", "pub(crate)", "pub(super)", "const", "async", "unsafe", "extern", "\"C\""])
            }
            Language::Python => ("def", &["async"]),
            Language::Go => ("func", &[]),
            Language::JavaScript => ("function", &["export", "default", "async"]),
            _ => return None,
        };
        let mut words = line.split_whitespace();
        let word = words.find(|word| !before.contains(word) && !word.starts_with("pub(in"))?;
        let name = words.next()?;
        (word == keyword).then(|| name.split(['(', '<']).next().unwrap_or(name))
    }
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

fn last_line_by_indent(lines: &[&str], first: usize) -> usize {
    let deeper = |line: &&str| line.trim().is_empty() || indent(line) > indent(lines[first]) || line.trim() == "):";
    let body = lines[first + 1..].iter().take_while(|line| deeper(line));
    let length = body.clone().count();
    first + length - body.collect::<Vec<_>>().iter().rev().take_while(|line| line.trim().is_empty()).count()
}

fn last_line_by_brace(lines: &[&str], first: usize) -> usize {
    let end = format!("{}}}", &lines[first][..indent(lines[first])]);
    let mut declared = false;
    for (number, line) in lines.iter().enumerate().skip(first) {
        let line = line.trim_end();
        declared |= line.ends_with('{');
        let is_over = line.starts_with(&end) || (!declared && (line.ends_with(';') || line.ends_with('}')));
        if is_over {
            return number;
        }
    }
    lines.len() - 1
}
