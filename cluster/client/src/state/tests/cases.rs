//! The table of cases that drives caches in all languages.

use std::{collections::HashMap, fs, path::Path};

use coppice_types::{Reason, Stamp};
use serde_json::Value;

use super::{
    super::{Options, error::Error},
    model::Words,
    world::{Slow, World},
};

fn number(value: &Value) -> u64 {
    value.as_u64().expect("a number")
}

fn word(value: &Value) -> &str {
    value.as_str().expect("a text")
}

fn stamp(step: &Value) -> Stamp {
    Stamp::new(number(&step["at"][0]), number(&step["at"][1]))
}

fn expect(what: &str, step: &Value, got: Result<Option<bytes::Bytes>, Error>) {
    match (got, step["refused"].as_str()) {
        (Err(error), Some(refused)) => assert_eq!(error.reason().map(Reason::name), Some(refused), "{what}: {error}"),
        (Ok(value), None) => assert_eq!(value.as_deref(), step["value"].as_str().map(str::as_bytes), "{what}"),
        (got, expected) => panic!("{what}: {got:?}, and not {expected:?}"),
    }
}

async fn read(what: &str, world: &World, step: &Value) {
    let before = world.cache.metrics();
    let value = world.cache.at(stamp(step)).get(word(&step["read"]).as_bytes()).await;
    expect(what, step, value);
    let by = if world.cache.metrics().hits > before.hits { "hit" } else { "miss" };
    if let Some(expected) = step.get("by") {
        assert_eq!(by, word(expected), "{what}");
    }
}

async fn run(what: &str, world: &mut World, step: &Value, held: &mut HashMap<String, Slow>) {
    let honest = "the model is honest";
    let fields = step.as_object().expect("an object");
    if let Some(writes) = fields.get("commit") {
        let writes = writes.as_object().expect("an object").iter();
        let writes: Words = writes.map(|(key, value)| (key.clone(), value.as_str().map(str::to_owned))).collect();
        world.write(&writes);
        if fields.contains_key("lists_gone") {
            let mut state = world.model.lock();
            let newest = state.log.len() - 1;
            state.lists_gone.insert(newest);
        }
        world.show().await.expect(honest);
    } else if let Some(base) = fields.get("rollback") {
        world.roll_back(number(base));
        world.show().await.expect(honest);
    } else if let Some(boundary) = fields.get("prune") {
        world.model.lock().prune(number(boundary));
        world.show().await.expect(honest);
    } else if let Some(cut) = fields.get("cut") {
        world.cut(cut.as_bool().expect("true or false")).await.expect(honest);
    } else if let Some(key) = fields.get("forget") {
        world.cache.shared.store().forget(word(key).as_bytes());
    } else if let Some(behind) = fields.get("behind") {
        world.model.lock().behind = u32::try_from(number(behind)).expect("a few");
    } else if let Some(name) = fields.get("begin") {
        let slow = world.hold(&world.cache.at(stamp(step)), word(&step["read"])).await;
        held.insert(word(name).to_owned(), slow);
    } else if let Some(name) = fields.get("end") {
        let slow = held.remove(word(name)).expect("it has begun");
        expect(what, step, slow.land().await);
    } else if fields.contains_key("read") {
        read(what, world, step).await;
    } else {
        panic!("{what}: an unknown step, {step}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_cases_hold() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../sdk/go/state/testdata/cases.json");
    let table = fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("the Go SDK has the table of cases, {}: {error}", path.display()));
    let table: Value = serde_json::from_str(&table).expect("JSON");
    let cases = table.as_array().expect("a list");
    assert!(!cases.is_empty(), "no cases");
    for case in cases {
        let about = word(&case["about"]);
        let mut world = World::followed(Options::default()).await;
        let mut held = HashMap::new();
        for (index, step) in case["steps"].as_array().expect("a list").iter().enumerate() {
            run(&format!("{about} Step {}", index + 1), &mut world, step, &mut held).await;
        }
        world.cache.shared.store().check();
    }
}
