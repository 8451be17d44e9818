//! Import loops between the files of a crate.
//!
//! A file imports another if one of its paths that begin with `crate`, `self` or `super` leads to
//! an item of the other. If a path goes through a re-export, the file that defines the item counts
//! as imported. Files with only tests are ignored, and so is the root of the crate, because it
//! names every module.

use std::collections::{BTreeMap, BTreeSet};

use crate::source::{Language, Source};

type Path = Vec<String>;

/// The files of one crate as modules.
struct Crate {
    modules: BTreeMap<Path, Module>,
}

#[derive(Default)]
struct Module {
    /// The file without its comments, strings and tests.
    code: String,
    /// An import of a `use`: the name in the module, and the path behind it.
    names: BTreeMap<String, Path>,
    globs: Vec<Path>,
}

/// Returns the loops of more than one file of each crate: the crate's folder and the modules.
pub fn loops(sources: &[Source]) -> Vec<(String, Vec<String>)> {
    let mut crates: BTreeMap<&str, Vec<(&str, &Source)>> = BTreeMap::new();
    for source in sources.iter().filter(|source| source.language == Language::Rust) {
        if let Some((folder, file)) = source.path.split_once("/src/") {
            crates.entry(folder).or_default().push((file, source));
        }
    }
    let of_crate = |(folder, files): (&str, Vec<(&str, &Source)>)| {
        let loops = Crate::new(&files).loops();
        loops.into_iter().map(|members| (folder.to_owned(), members)).collect::<Vec<_>>()
    };
    crates.into_iter().flat_map(of_crate).collect()
}

impl Crate {
    fn new(files: &[(&str, &Source)]) -> Self {
        let has_library = files.iter().any(|(file, _)| *file == "lib.rs");
        let mut for_tests = BTreeSet::new();
        let mut modules = BTreeMap::new();
        for (file, source) in files.iter().filter(|(file, _)| *file != "main.rs" || !has_library) {
            let path = module_path(file);
            let mut code = without_literals(&source.text);
            for module in take_tests(&mut code) {
                for_tests.insert([path.clone(), vec![module]].concat());
            }
            modules.insert(path, Module { code, ..Module::default() });
        }
        modules.retain(|path, _| !(1..=path.len()).any(|depth| for_tests.contains(&path[..depth])));
        for (path, module) in &mut modules {
            for (name, target) in uses(&module.code, path) {
                match name.as_str() {
                    "*" => module.globs.push(target),
                    _ => drop(module.names.insert(name, target)),
                }
            }
        }
        Self { modules }
    }

    fn loops(&self) -> Vec<Vec<String>> {
        let mut edges = BTreeMap::new();
        for (path, module) in self.modules.iter().filter(|(path, _)| !path.is_empty()) {
            let mut targets = BTreeSet::new();
            let used = uses(&module.code, path).into_iter().map(|(_, target)| target);
            for target in used.chain(inline_paths(&module.code, path)) {
                targets.extend(self.resolve(&target, 0).filter(|target| !target.is_empty() && target != path));
            }
            edges.insert(path.clone(), targets);
        }
        let mut loops: Vec<Vec<String>> = Vec::new();
        let reach: BTreeMap<&Path, BTreeSet<&Path>> =
            edges.keys().map(|from| (from, reachable(&edges, from))).collect();
        let mut seen = BTreeSet::new();
        for from in edges.keys() {
            let members: Vec<&Path> = reach[from].iter().copied().filter(|to| reach[*to].contains(from)).collect();
            if members.len() > 1 && seen.insert(members.clone()) {
                loops.push(members.iter().map(|member| member.join("/")).collect());
            }
        }
        loops
    }

    /// Returns the module that holds the item of a path from the root of the crate; `None` if that
    /// lies in another crate.
    fn resolve(&self, path: &[String], depth: usize) -> Option<Path> {
        /// Longest chain of re-exports. A longer chain is a circle.
        const DEPTH_MAX: usize = 16;
        let mut at = Path::new();
        for (index, segment) in path.iter().enumerate() {
            let child = [at.clone(), vec![segment.clone()]].concat();
            if self.modules.contains_key(&child) {
                at = child;
                continue;
            }
            let module = self.modules.get(&at)?;
            if depth == DEPTH_MAX {
                return Some(at);
            }
            if let Some(target) = module.names.get(segment) {
                let whole = [target.clone(), path[index + 1..].to_vec()].concat();
                return if target.first().is_some_and(|first| first == OUTSIDE) {
                    None
                } else {
                    self.resolve(&whole, depth + 1)
                };
            }
            let mut defined = module.globs.iter().filter_map(|glob| self.resolve(glob, depth + 1));
            return Some(defined.find(|target| self.defines(target, segment)).unwrap_or(at));
        }
        Some(at)
    }

    fn defines(&self, module: &Path, name: &str) -> bool {
        let code = &self.modules[module].code;
        ["struct", "enum", "trait", "type", "fn", "const", "static", "union"].iter().any(|kind| {
            let item = format!("{kind} {name}");
            code.match_indices(&item).any(|(at, _)| !code[at + item.len()..].starts_with(is_name))
        })
    }
}

/// The first part of the path of an item in another crate.
const OUTSIDE: &str = "";

fn reachable<'e>(edges: &'e BTreeMap<Path, BTreeSet<Path>>, from: &'e Path) -> BTreeSet<&'e Path> {
    let mut reached = BTreeSet::new();
    let mut next: Vec<&Path> = edges[from].iter().collect();
    while let Some(path) = next.pop() {
        if reached.insert(path) {
            next.extend(edges.get(path).into_iter().flatten());
        }
    }
    reached
}

fn module_path(file: &str) -> Path {
    let mut path: Path = file.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
    if path.last().is_some_and(|last| ["mod", "lib", "main"].contains(&last.as_str())) {
        path.pop();
    }
    path
}

fn is_name(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

/// Blanks comments, strings and characters.
fn without_literals(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let after_name = code.chars().next_back().is_some_and(is_name);
        let skipped = match first {
            '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            '/' if rest.starts_with("/*") => rest.find("*/").map_or(rest.len(), |end| end + 2),
            '"' => string_bytes(rest),
            'r' if !after_name && (rest.starts_with("r\"") || rest.starts_with("r#\"")) => {
                let end = if rest.starts_with("r#") { "\"#" } else { "\"" };
                let begin = 1 + end.len();
                rest[begin..].find(end).map_or(rest.len(), |at| begin + at + end.len())
            }
            '\'' => character_bytes(rest),
            _ => 0,
        };
        if skipped == 0 {
            code.push(first);
            rest = &rest[first.len_utf8()..];
        } else {
            rest = &rest[skipped..];
        }
    }
    code
}

fn string_bytes(text: &str) -> usize {
    let mut escaped = false;
    for (at, character) in text.char_indices().skip(1) {
        match character {
            '"' if !escaped => return at + 1,
            _ => escaped = character == '\\' && !escaped,
        }
    }
    text.len()
}

/// Returns the length of the character literal at the beginning, or 0 for a lifetime.
fn character_bytes(text: &str) -> usize {
    let mut characters = text.char_indices().skip(1);
    match characters.next() {
        Some((_, '\\')) => text[2..].find('\'').map_or(0, |end| {
            // The quote may be the escaped character itself.
            if end == 0 { text[3..].find('\'').map_or(0, |next| 3 + next + 1) } else { 2 + end + 1 }
        }),
        Some(_) => match characters.next() {
            Some((at, '\'')) => at + 1,
            _ => 0,
        },
        None => 0,
    }
}

/// Takes the items that are for tests only out of the code, and returns the modules among them that
/// lie in files of their own.
fn take_tests(code: &mut String) -> Vec<String> {
    const MARK: &str = "#[cfg(test)]";
    let mut modules = Vec::new();
    while let Some(at) = code.find(MARK) {
        let item = &code[at + MARK.len()..];
        let end = item.find(['{', ';']).unwrap_or(item.len() - 1);
        let bytes = if item[end..].starts_with('{') { end + block_bytes(&item[end..]) } else { end + 1 };
        let words: Vec<&str> = item[..end].split_whitespace().collect();
        if let [.., "mod", name] = words[..] {
            modules.push(name.to_owned());
        }
        code.replace_range(at..at + MARK.len() + bytes, "");
    }
    modules
}

fn block_bytes(code: &str) -> usize {
    let mut depth = 0;
    for (at, character) in code.char_indices() {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at + 1;
        }
    }
    code.len()
}

/// Returns the names that the `use` declarations of a module bring in, and the paths behind them.
fn uses(code: &str, module: &[String]) -> Vec<(String, Path)> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("use ") {
        if code[..at].ends_with(is_name) {
            continue;
        }
        let declaration = &code[at + 4..];
        let tree = &declaration[..declaration.find(';').unwrap_or(0)];
        expand(&[], tree, module, &mut found);
    }
    found
}

fn expand(prefix: &[String], tree: &str, module: &[String], found: &mut Vec<(String, Path)>) {
    for branch in split_branches(tree) {
        let (path, inner) = match branch.find('{') {
            Some(brace) => (&branch[..brace], Some(&branch[brace + 1..branch.rfind('}').unwrap_or(branch.len())])),
            None => (branch, None),
        };
        let (path, alias) = path.split_once(" as ").map_or((path, None), |(path, alias)| (path, Some(alias.trim())));
        let names = path.split("::").map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned);
        let mut whole: Path = prefix.iter().cloned().chain(names).collect();
        if let Some(inner) = inner {
            expand(&whole, inner, module, found);
            continue;
        }
        if whole.last().is_some_and(|last| last == "self") {
            whole.pop();
        }
        let Some(name) = alias.map(str::to_owned).or_else(|| whole.last().cloned()) else { continue };
        if name == "*" {
            whole.pop();
        }
        found.push((name, from_root(&whole, module)));
    }
}

/// Splits at the commas outside of braces.
fn split_branches(tree: &str) -> Vec<&str> {
    let mut branches = Vec::new();
    let (mut depth, mut from) = (0, 0);
    for (at, character) in tree.char_indices() {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                branches.push(tree[from..at].trim());
                from = at + 1;
            }
            _ => {}
        }
    }
    branches.push(tree[from..].trim());
    branches.into_iter().filter(|branch| !branch.is_empty()).collect()
}

/// Returns the path from the root of the crate. A path that does not begin with a keyword belongs
/// to the module itself, or to another crate if its first name is that of a crate.
fn from_root(path: &[String], module: &[String]) -> Path {
    let ups = path.iter().take_while(|segment| *segment == "super").count();
    match path.first().map(String::as_str) {
        Some("crate") => path[1..].to_vec(),
        Some("self") => [module, &path[1..]].concat(),
        Some("super") => [&module[..module.len().saturating_sub(ups)], &path[ups..]].concat(),
        Some(first) if is_other_crate(first) => [vec![OUTSIDE.to_owned()], path.to_vec()].concat(),
        _ => [module, path].concat(),
    }
}

fn is_other_crate(name: &str) -> bool {
    ["std", "core", "alloc"].contains(&name) || name.starts_with("coppice_")
}

/// Returns the paths in the code that begin with `crate` or `super`, beyond the `use` declarations.
fn inline_paths(code: &str, module: &[String]) -> Vec<Path> {
    let mut found = Vec::new();
    for keyword in ["crate::", "super::"] {
        for (at, _) in code.match_indices(keyword) {
            if code[..at].ends_with(|before| is_name(before) || before == ':') {
                continue;
            }
            let end = code[at..].find(|character| !is_name(character) && character != ':').unwrap_or(code.len() - at);
            let path: Path =
                code[at..at + end].split("::").filter(|name| !name.is_empty()).map(str::to_owned).collect();
            // Before a brace it is the beginning of a `use`, which has been read already.
            if path.iter().any(|name| name != "crate" && name != "super") {
                found.push(from_root(&path, module));
            }
        }
    }
    found
}
