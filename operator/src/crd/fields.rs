//! The reference of all fields, as Markdown, from the definitions.

use std::fmt::Write as _;

use serde_json::Value;

use super::definitions;

/// Fields whose content is a type of Kubernetes itself, which its own reference describes.
const FOREIGN: [&str; 5] = ["resources", "tolerations", "topologySpreadConstraints", "affinity", "pullSecrets"];

/// The page `docs/fields.md`.
#[must_use]
pub fn reference() -> String {
    let mut page = String::from(
        "# Fields of the resources\n\n\
         Made from the definitions by `make crds`: do not edit. [operator.md](operator.md) says what the\n\
         resources do, and `charts/examples` has samples with comments. `kubectl explain\n\
         ledgercluster.spec` tells the same of the installed version.\n",
    );
    for (_, definition) in definitions() {
        let definition = serde_json::to_value(definition).expect("a definition is JSON");
        let (kind, schema) = (
            definition["spec"]["names"]["kind"].as_str().unwrap_or_default(),
            &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"],
        );
        for part in ["spec", "status"] {
            let _ = write!(page, "\n## {kind}: {part}\n\n");
            page.push_str("| field | type | default | meaning |\n| --- | --- | --- | --- |\n");
            rows(part, &schema[part], &mut page);
        }
    }
    page
}

/// A row for each field below a schema, in the order of the definition.
fn rows(path: &str, schema: &Value, page: &mut String) {
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        let required = schema["required"].as_array().is_some_and(|names| names.iter().any(|it| it == name));
        let default = match field.get("default") {
            // Its fields have their own rows.
            Some(Value::Object(_)) => String::new(),
            Some(default) => format!("`{}`", cell(&default.to_string())),
            None if required => "required".to_owned(),
            None => String::new(),
        };
        let _ = writeln!(page, "| `{path}` | {} | {default} | {} |", kind(field), meaning(field));
        if FOREIGN.contains(&name.as_str()) {
            continue;
        }
        rows(&path, field, page);
        rows(&format!("{path}[]"), &field["items"], page);
    }
}

/// The type of a field, with its bounds.
fn kind(field: &Value) -> String {
    if let Some(words) = field["enum"].as_array() {
        // A field that may be left out has an empty word, too.
        let words = words.iter().filter_map(Value::as_str).map(|word| format!("`{word}`"));
        return words.collect::<Vec<_>>().join(", ");
    }
    let bounds = match (field["minimum"].as_f64(), field["maximum"].as_f64()) {
        (Some(least), Some(most)) => format!(" {least} to {most}"),
        (Some(least), None) => format!(" from {least} on"),
        (None, Some(most)) => format!(" up to {most}"),
        (None, None) => String::new(),
    };
    match field["type"].as_str().unwrap_or_default() {
        "array" => format!("list of {}", kind(&field["items"])),
        "object" if field.get("additionalProperties").is_some() => "map".to_owned(),
        kind => format!("{kind}{bounds}"),
    }
}

/// The description of a field, and the rules that the API server checks.
fn meaning(field: &Value) -> String {
    let rules = field["x-kubernetes-validations"].as_array().into_iter().flatten();
    let rules = rules.filter_map(|rule| rule["message"].as_str()).map(|rule| format!("*{}.*", cell(rule)));
    let said = field["description"].as_str().map(cell);
    said.into_iter().chain(rules).collect::<Vec<_>>().join(" ")
}

/// A text as it may stand in a cell of a table.
fn cell(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}
