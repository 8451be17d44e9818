//! The chart's alerts and dashboard use only metrics and labels that `docs/metrics.md` lists, and
//! each alert has a runbook.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use serde_json::Value;

/// Labels that the collector adds.
const OF_TARGETS: &[&str] = &["job", "instance"];
/// Functions of PromQL.
const FUNCTIONS: &[&str] = &[
    "absent",
    "count",
    "delta",
    "histogram_quantile",
    "increase",
    "last_over_time",
    "max",
    "min",
    "rate",
    "sum",
    "vector",
];
/// Keywords of PromQL before a list of labels.
const BEFORE_LABELS: &[&str] = &["by", "on", "without", "ignoring", "group_left", "group_right"];
const OPERATORS: &[&str] = &["and", "or", "unless"];

/// Labels by metric, including the parts of histograms.
type Metrics = BTreeMap<String, BTreeSet<String>>;

fn file(path: &str) -> String {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the operator lies in the repository");
    fs::read_to_string(repository.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn metrics() -> Metrics {
    let mut metrics = Metrics::new();
    for line in file("docs/metrics.md").lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, name, _, kind, _, labels, ..] = cells[..] else { panic!("{line}") };
        let labels: BTreeSet<String> =
            labels.split(',').map(|label| label.trim().trim_matches('`').to_owned()).collect();
        let name = name.trim_matches('`');
        if kind != "histogram" {
            metrics.insert(name.to_owned(), labels);
            continue;
        }
        for part in ["sum", "count", "bucket"] {
            let le = (part == "bucket").then(|| "le".to_owned());
            metrics.insert(format!("{name}_{part}"), labels.iter().cloned().chain(le).collect());
        }
    }
    metrics
}

fn is_word(piece: &str) -> bool {
    piece.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
}

/// Splits a query into words and single other characters, without strings, time ranges and numbers.
fn pieces(query: &str) -> Vec<&str> {
    let mut pieces = Vec::new();
    let mut rest = query;
    while let Some(first) = rest.chars().next() {
        let after = match first {
            '"' => 2 + rest[1..].find('"').expect("a text ends"),
            '[' => 1 + rest.find(']').expect("a range ends"),
            _ => match rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len()) {
                0 => first.len_utf8(),
                word => word,
            },
        };
        let piece = &rest[..after];
        let left_out = first.is_whitespace() || first.is_ascii_digit() || ['"', '[', '.'].contains(&first);
        pieces.extend((!left_out).then_some(piece));
        rest = &rest[after..];
    }
    pieces
}

/// Panics unless a query uses only listed metrics and labels.
fn check(query: &str, metrics: &Metrics) {
    let pieces = pieces(query);
    let (mut used, mut grouped) = (BTreeSet::new(), BTreeSet::new());
    let mut at = 0;
    // The text between the next bracket and its end.
    let inner = |at: usize, end: &str| {
        let len = pieces[at..].iter().position(|piece| *piece == end).expect("a bracket ends");
        pieces[at..at + len].iter().copied().filter(|piece| is_word(piece)).collect::<BTreeSet<_>>()
    };
    while let Some(piece) = pieces.get(at) {
        at += 1;
        if BEFORE_LABELS.contains(piece) {
            grouped.extend(inner(at, ")"));
            at += pieces[at..].iter().position(|piece| *piece == ")").expect("a list ends");
        } else if let Some(labels) = metrics.get(*piece) {
            used.insert(*piece);
            if pieces.get(at) == Some(&"{") {
                for label in inner(at, "}") {
                    let known = labels.contains(label) || OF_TARGETS.contains(&label);
                    assert!(known, "{query}: {piece} has no label {label}");
                }
                at += pieces[at..].iter().position(|piece| *piece == "}").expect("matchers end");
            }
        } else if is_word(piece) {
            let known = FUNCTIONS.contains(piece) || OPERATORS.contains(piece);
            assert!(known, "{query}: {piece} is not listed in docs/metrics.md");
        }
    }
    for label in grouped {
        let known = OF_TARGETS.contains(&label) || used.iter().any(|metric| metrics[*metric].contains(label));
        assert!(known, "{query}: none of its metrics has a label {label}");
    }
    assert!(!used.is_empty(), "{query} asks for nothing");
}

#[test]
fn alerts_query_only_listed_metrics_and_each_has_a_runbook() {
    let metrics = metrics();
    let alerts: Value = serde_saphyr::from_str(&file("charts/coppice/files/alerts.yaml")).expect("it is YAML");
    let overview = file("docs/runbooks/README.md");
    let mut names = BTreeSet::new();
    for rule in alerts["groups"][0]["rules"].as_array().expect("there are rules") {
        let text = |value: &Value| value.as_str().unwrap_or_else(|| panic!("{rule}")).to_owned();
        let name = text(&rule["alert"]);
        check(&text(&rule["expr"]), &metrics);
        assert!(["critical", "warning"].contains(&text(&rule["labels"]["severity"]).as_str()), "{name}");
        assert!(!text(&rule["annotations"]["summary"]).is_empty() && rule["annotations"]["description"].is_string());
        let url = text(&rule["annotations"]["runbook_url"]);
        let (_, path) = url.split_once("/blob/main/").expect("it is in the repository");
        assert!(file(path).contains(&format!("`{name}`")), "{path} does not say what {name} is");
        assert!(overview.contains(&format!("`{name}`")), "the overview of runbooks lacks {name}");
        assert!(names.insert(name), "two alerts have the same name");
    }
    assert!(names.len() >= 5, "{names:?}");
    // `make test-alerts` checks that Prometheus agrees.
    let tests: Value = serde_saphyr::from_str(&file("charts/tests/alerts.yaml")).expect("it is YAML");
    let tests = tests["tests"].as_array().expect("there are tests");
    let cases: Vec<&Value> = tests.iter().flat_map(|test| test["alert_rule_test"].as_array().expect("cases")).collect();
    for name in names {
        for fires in [true, false] {
            let is_case = |case: &&&Value| {
                case["alertname"] == name.as_str()
                    && case["exp_alerts"].as_array().is_some_and(|list| list.is_empty() != fires)
            };
            assert!(
                cases.iter().any(|case| is_case(&case)),
                "charts/tests/alerts.yaml: {name} where it fires = {fires}"
            );
        }
    }
}

#[test]
fn the_dashboard_queries_only_listed_metrics() {
    let metrics = metrics();
    let dashboard: Value = serde_json::from_str(&file("charts/coppice/files/dashboard.json")).expect("it is JSON");
    let mut asked = 0;
    for panel in dashboard["panels"].as_array().expect("there are panels") {
        for target in panel["targets"].as_array().expect("a panel asks something") {
            check(target["expr"].as_str().expect("a query"), &metrics);
            asked += 1;
        }
    }
    assert!(asked > 20, "{asked} queries");
    let variable = &dashboard["templating"]["list"][1]["query"]["query"];
    let listed = variable.as_str().and_then(|query| query.strip_prefix("label_values(")).expect("it lists labels");
    assert!(metrics.contains_key(listed.split(',').next().expect("it names a metric")), "{listed}");
}

#[test]
fn a_query_for_an_unlisted_metric_is_found() {
    let metrics = metrics();
    check(r#"max by (group, job) (rate(coppice_raft_elections_total{outcome="won"}[5m])) > 0.5"#, &metrics);
    let wrong = [
        "sum(coppice_raft_terms)",
        "sum by (shard) (coppice_raft_term)",
        r#"coppice_raft_term{shard="0"} > 1"#,
        "rate(coppice_commit_duration_seconds[5m])",
        "vector(1)",
    ];
    for query in wrong {
        assert!(std::panic::catch_unwind(|| check(query, &metrics)).is_err(), "{query}");
    }
}
