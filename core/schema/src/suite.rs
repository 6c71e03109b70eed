//! The suite of the JSON Schema organisation: answers of our evaluator are compared with the answers of the suite.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use super::*;

#[derive(Deserialize)]
struct Group {
    description: String,
    schema: Value,
    tests: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    description: String,
    data: Value,
    valid: bool,
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("the suite is in the repository");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("the folder can be read").path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "json"));
    files.sort();
    files
}

/// Groups of the suite whose schemas are refused, by file. All of them refer to other documents, or to places by
/// another name than their path, or name another dialect.
const REFUSED: [(&str, usize); 13] = [
    ("anchor.json", 4),
    ("defs.json", 1),
    ("dynamicRef.json", 21),
    ("optional/anchor.json", 1),
    ("optional/cross-draft.json", 1),
    ("optional/dynamicRef.json", 1),
    ("optional/id.json", 1),
    ("optional/unknownKeyword.json", 1),
    ("ref.json", 16),
    ("refRemote.json", 15),
    ("unevaluatedItems.json", 1),
    ("unevaluatedProperties.json", 1),
    ("vocabulary.json", 2),
];

#[test]
fn the_suites_answers_are_ours_and_only_references_and_dialects_are_refused() {
    let suite = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/json-schema-test-suite");
    let (mut wrong, mut refused, mut checked) = (Vec::new(), BTreeMap::<String, usize>::new(), 0);
    for file in files(&suite).into_iter().chain(files(&suite.join("optional"))) {
        let text = std::fs::read_to_string(&file).expect("the file can be read");
        let groups: Vec<Group> = serde_json::from_str(&text).expect("a file has groups of cases");
        let name = file.strip_prefix(&suite).expect("it is in the folder").display().to_string();
        for group in groups {
            let schema = match Schema::compile(&group.schema.to_string()) {
                Ok(schema) => schema,
                Err(InvalidSchema::Foreign(_) | InvalidSchema::Dialect(_)) => {
                    *refused.entry(name.clone()).or_default() += 1;
                    continue;
                }
                Err(error) => panic!("{name}: {}: {error}", group.description),
            };
            for case in group.tests {
                checked += 1;
                let fits = Check::new(&schema.0.0, Steps::of(case.data.to_string().len())).fits(0, &case.data);
                if fits != Ok(case.valid) {
                    wrong.push(format!("{name}: {}: {}: {fits:?}", group.description, case.description));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    let refused: Vec<(&str, usize)> = refused.iter().map(|(name, groups)| (name.as_str(), *groups)).collect();
    assert_eq!(refused, REFUSED);
    assert_eq!(checked, 1316, "cases whose answer is compared");
}
