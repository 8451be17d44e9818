//! The description of the API against the API: the same resources and methods, and examples that
//! are what a ledger answers.

use coppice_proto::rest::Resource;
use serde_json::Value;

use crate::{
    start,
    wire::{Answer, ask},
};

fn description() -> Value {
    serde_json::from_str(coppice_http::OPENAPI).expect("it is JSON")
}

#[test]
fn the_description_has_the_resources_and_methods_that_there_are() {
    let description = description();
    assert_eq!(description["openapi"], "3.1.0");
    let paths = description["paths"].as_object().expect("paths");
    let described: Vec<&String> = paths.keys().collect();
    let mut known: Vec<&str> = Resource::ALL.iter().map(|(path, _)| *path).collect();
    known.sort_unstable();
    assert_eq!(described, known);
    for (path, resource) in Resource::ALL {
        let methods: Vec<String> =
            resource.methods().iter().map(|(method, _)| method.as_str().to_ascii_lowercase()).collect();
        let item = paths[path].as_object().expect("a path item");
        let described: Vec<&String> = item.keys().filter(|key| *key != "parameters").collect();
        let mut methods: Vec<&String> = methods.iter().collect();
        methods.sort_unstable();
        assert_eq!(described, methods, "{path}");
    }
}

/// Whether an answer has the form of an example: the same names, and values of the same types.
fn alike(example: &Value, answer: &Value) -> bool {
    match (example, answer) {
        (Value::Object(example), Value::Object(answer)) => {
            example.keys().eq(answer.keys()) && example.iter().all(|(name, value)| alike(value, &answer[name]))
        }
        (Value::Array(example), Value::Array(answer)) => {
            example.first().is_none_or(|first| answer.iter().all(|value| alike(first, value)))
        }
        (Value::Null, _) | (_, Value::Null) => true,
        _ => std::mem::discriminant(example) == std::mem::discriminant(answer),
    }
}

/// The answer to an example: the request that `x-example` of an operation describes.
fn answer_to(dev: &crate::common::Dev, method: &str, operation: &Value) -> Answer {
    let example = &operation["x-example"];
    let headers: Vec<&str> =
        example["headers"].as_array().into_iter().flatten().map(|header| header.as_str().expect("a header")).collect();
    let body = example["body"].as_str().unwrap_or_default();
    let path = example["path"].as_str().unwrap_or_else(|| panic!("{method}: no example: {operation}"));
    ask(dev, &method.to_ascii_uppercase(), path, &headers, body.as_bytes())
}

#[test]
fn the_examples_are_what_a_ledger_answers() {
    let work = tempfile::tempdir().expect("a temporary directory");
    let dev = start(work.path());
    assert_eq!(ask(&dev, "PUT", "/v1/records/alice", &["Coppice-Write: any"], b"100").code, 200);
    assert_eq!(ask(&dev, "PUT", "/v1/records/alice", &["Coppice-Write: any"], b"70").code, 200);
    let description = description();
    let mut operations: Vec<(&str, &str, &Value)> = Vec::new();
    for (path, item) in description["paths"].as_object().expect("paths") {
        for (method, operation) in item.as_object().expect("an item").iter().filter(|(key, _)| *key != "parameters") {
            operations.push((path.as_str(), method.as_str(), operation));
        }
    }
    // What deletes comes last, so that the other examples find their records.
    operations.sort_by_key(|(_, method, _)| *method == "delete");
    for (path, method, operation) in operations {
        if path == "/v1/watch" {
            // It does not end: the page of the API shows it.
            continue;
        }
        let chunked = ["/v1/diff", "/v1/records/{key}/history"].contains(&path);
        let answer = answer_to(&dev, method, operation);
        assert_eq!(answer.code, 200, "{method} {path}: {answer:?}");
        let content = operation["responses"]["200"]["content"].as_object().expect("content");
        let kind = answer.header("content-type").expect("it has a type");
        assert!(content.contains_key(kind), "{method} {path}: {kind}");
        if chunked || path == "/v1/openapi.json" {
            continue;
        }
        match (kind, &content[kind]["example"]) {
            ("application/json", example) => assert!(alike(example, &answer.json()), "{method} {path}: {answer:?}"),
            ("application/jsonl", Value::String(example)) => {
                let line = |text: &str| serde_json::from_str(text.lines().next().unwrap_or_default()).expect("a line");
                let (example, line): (Value, Value) = (line(example), line(answer.text()));
                assert!(alike(&example, &line), "{method} {path}: {answer:?}");
            }
            (_, Value::String(example)) => assert!(!example.is_empty() && !answer.body.is_empty(), "{method} {path}"),
            (_, example) => panic!("{method} {path}: no example: {example}"),
        }
    }
}
